"""The terminal UI: shows a run and asks its engine. It decides nothing and measures nothing.

It stands on what a run directory holds (`autotune.folding`, `view`, `journal`, `control`, `lease`)
and on the words of `autotune.display.wording`. It imports no training library, and nothing imports
it: the command line starts `python -m tui RUN_DIRECTORY` as a child.
"""
