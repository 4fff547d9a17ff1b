"""Groups of ranks on one node or several: started, brought together, watched, ended."""
