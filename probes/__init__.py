"""What the machine can do. Measures, never decides."""
