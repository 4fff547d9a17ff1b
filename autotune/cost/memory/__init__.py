"""How many bytes a training step needs, before it is run: what it keeps, reserves and stands beside.

Pure arithmetic over a trace of the step; formulas stand with their sources where they are used.
"""
