"""The scripts that are written: what they prepare, how they train, in plain Python."""
