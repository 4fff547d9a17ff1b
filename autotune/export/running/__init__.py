"""Written scripts run on this machine, on one rank or several, and watched."""
