"""Workloads of live objects: a Trainer, or the parts of one, that a library call was given."""
