"""OCI runtimes, the only place that tells one from another."""
