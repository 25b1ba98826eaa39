"""Many runs of one experiment, to one table."""
