"""Runs one training step on fake tensors, in a child and on no device, and notes its memory."""
