"""Profiles: what a device says of its data before training, with or without noise."""
