"""What a job is made of, as a form: its fields, what it says on a command line, what is wrong with it."""
