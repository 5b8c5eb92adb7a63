"""runc: the most widely tried, sharing the host's kernel. Only by the owner's explicit choice."""

from skerry.node import namespaces
from skerry.node.cgroups import Layout
from skerry.node.runtimes.command_line import Driver, open_low_ports


def _enter(_layout: Layout) -> None:
    namespaces.private_mounts()


RUNC = Driver(name="runc", shares_kernel=True, package="runc", flags=(), enter=_enter, prepare=open_low_ports)
