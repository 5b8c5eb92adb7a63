"""The command line. Stands on the client, and on `skerry.serve` only to start or examine a server."""
