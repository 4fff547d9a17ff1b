"""What fits on a device that need not be here: asked, reckoned, told and kept."""
