"""Profiles: what a device sends about its data before training, with or without noise."""
