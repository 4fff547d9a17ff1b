"""How a run is shown while it goes on: as a live panel, as plain lines, or not at all."""
