"""The blocking half of the client: generated from `_async/` by `scripts/generate_sync.py`, never edited."""
