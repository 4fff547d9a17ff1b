"""Trials on several ranks: each has its place, all agree on one outcome."""
