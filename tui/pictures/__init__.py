"""Pictures in characters: functions from a run to rows of text of a given size."""
