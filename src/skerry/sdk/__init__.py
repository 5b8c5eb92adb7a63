"""The client. The asynchronous half is written, the synchronous half generated from it."""
