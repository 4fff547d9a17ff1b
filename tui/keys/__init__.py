"""The keys of each screen; `tui.bindings` puts them into one table."""
