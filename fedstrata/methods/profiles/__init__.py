"""Profiles: what a device shares about its data before training, with or without noise."""
