"""Tests mirror the packages; `testing` holds what they share."""
