"""What the probes found, in rows: readings with their spread, what follows from each, links."""
