"""The bodies of the commands, one module each; imported when the command runs."""
