"""The command line. Nothing below this package draws or parses arguments."""
