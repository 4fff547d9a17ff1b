"""What trials have shown: what is known of each candidate, ranked, and what it closes."""
