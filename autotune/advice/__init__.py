"""The answer of a run in words and as the public document."""
