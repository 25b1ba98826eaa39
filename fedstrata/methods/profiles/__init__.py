"""Profiles: the answers of a device about its data before training, with or without noise."""
