"""What is trained, whoever brings it: one module a source, one protocol."""
