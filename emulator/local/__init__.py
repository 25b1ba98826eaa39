"""The three tiers as processes of this machine."""
