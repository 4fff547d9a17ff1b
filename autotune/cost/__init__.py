"""What is known of configurations that were not run: how they learn, what their exchange costs.

Pure functions over what trials measured; formulas stand with their sources where they are used.
"""
