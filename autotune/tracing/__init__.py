"""Runs one training step on fake tensors, in a child and never on a device, and notes its memory."""
