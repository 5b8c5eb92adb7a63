"""The node: owns sandboxes on one host. Knows no account, no HTTP and no database."""
