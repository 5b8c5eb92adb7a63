"""The command line. One module a noun; stands on the client, and on `skerry.serve` only to start or examine a server."""
