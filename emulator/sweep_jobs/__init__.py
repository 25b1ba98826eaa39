"""Do a sweep as a Kubernetes Job. The pods of the Job share the runs, through a volume claim or a bucket."""
