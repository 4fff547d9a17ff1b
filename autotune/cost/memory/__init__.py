"""What training holds in memory, reckoned from one traced step: no device, no torch."""
