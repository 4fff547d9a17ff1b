"""The library call before training, and the recommendation that it returns."""
