"""The command line, one file a noun. Speaks to a server through the SDK."""
