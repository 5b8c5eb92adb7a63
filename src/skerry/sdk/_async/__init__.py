"""The asynchronous half of the client: the source. `_sync/` is generated from here and never edited."""
