"""Run experiments on Kubernetes: install a release, follow its run, and collect the record."""
