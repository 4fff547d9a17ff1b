"""Tries configurations, learns from them, ranks them, and confirms the best."""
