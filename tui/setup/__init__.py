"""A job as a form: its fields, the command line that says the same, what is wrong with it."""
