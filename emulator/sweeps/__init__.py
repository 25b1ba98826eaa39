"""Many runs of one experiment, with one table."""
