"""Published tables run again beside their published values, and checks of what others have run."""
