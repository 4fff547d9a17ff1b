"""The end of a run in words: what it recommends, what is missing, or why nothing can be had."""
