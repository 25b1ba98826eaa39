"""Run the three tiers as processes on this machine."""
