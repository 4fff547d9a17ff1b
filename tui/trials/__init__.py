"""Trials as rows and as text: what the table, the filter and the detail say of them. No widgets."""
