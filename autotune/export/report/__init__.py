"""`report.md` and its picture, for people."""
