"""A sandbox's network: its namespace, its link to the host, what it may reach, and how it resolves names.

`Network` is all that the rest of the node uses. What is changed on the host is listed there.
"""

from skerry.node.network.network import Network

__all__ = ["Network"]
