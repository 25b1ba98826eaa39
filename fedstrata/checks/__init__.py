"""The rules of an experiment that concern more than one section: each refuses what cannot work, by key and value."""
