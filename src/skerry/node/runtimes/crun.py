"""crun: the quickest, sharing the host's kernel. Only by the owner's explicit choice.

It refuses hosts with hybrid cgroups; in a mount namespace without the (unused) version 2 tree it works with version 1.
"""

from skerry.node import namespaces
from skerry.node.cgroups import Layout
from skerry.node.runtimes.command_line import Driver, open_low_ports


def _enter(layout: Layout) -> None:
    namespaces.private_mounts()
    if layout.unified:
        namespaces.detach_mount(str(layout.root / "unified"))


CRUN = Driver(
    name="crun",
    shares_kernel=True,
    package="crun",
    flags=("--cgroup-manager=cgroupfs",),
    enter=_enter,
    prepare=open_low_ports,
)
