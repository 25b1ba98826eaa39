"""Runs on a Kubernetes cluster: installing a release, following it, collecting its record."""
