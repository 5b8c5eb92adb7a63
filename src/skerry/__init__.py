"""Skerry: sandboxes for AI agents on machines you own. `import skerry` is the client; the server is `skerry.serve`."""

__version__ = "0.1.0"
