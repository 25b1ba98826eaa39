"""Runs on a Kubernetes cluster: install a release, follow it, and collect its record."""
