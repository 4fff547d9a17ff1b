"""Runs one configuration for a few steps in a child process, away from the engine."""
