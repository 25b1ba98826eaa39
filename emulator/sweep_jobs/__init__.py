"""A sweep as a Kubernetes Job, with pods that share the sweep's folder."""
