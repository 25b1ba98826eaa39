"""The three tiers as processes on this machine."""
