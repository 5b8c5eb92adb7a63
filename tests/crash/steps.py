"""The steps of create, exec and destroy at which the parts are killed. `every` finds all there are, by watching."""

from collections.abc import Callable

from crash.instances import CrashServer, Step, after, before

VICTIMS = ("api", "node", "both", "supervisor")

CREATE = (
    before("api", "store.store:SqlStore.add_sandbox"),
    after("api", "store.store:SqlStore.add_sandbox"),
    before("node", "node.records:Records.write"),
    after("node", "node.records:Records.write"),
    after("node", "node.quota:create"),
    after("node", "node.layers:Layers._make"),
    after("node", "node.layers:Layers.create"),
    after("node", "node.network.netns:create"),
    after("node", "node.network.network:Network.attach"),
    after("node", "node.oci:write"),
    before("node", "node.runtimes.command_line:CommandLine._adopt"),
    after("node", "node.runtimes.command_line:CommandLine.start"),
    after("node", "guest.connection:connect"),
    after("node", "node.steps:start"),
    after("node", "node.supervisor:Supervisor._make"),
    after("api", "providers.local:LocalProvider.create"),
    after("api", "store.store:SqlStore.transition"),
)

EXEC = (
    before("api", "store.store:SqlStore.add_command"),
    after("api", "store.store:SqlStore.add_command"),
    before("node", "node.commands:Runner.exec"),
    before("node", "guest.commands:Commands.exec"),
    after("node", "guest.commands:Commands.exec"),
    after("api", "providers.local_guest:LocalGuest.exec"),
    after("node", "node.spool_writer:Writer.append"),
    before("node", "node.spool_writer:Writer._record"),
    before("node", "node.spool_writer:Writer.finish"),
    after("node", "node.spool_writer:Writer.finish"),
    after("node", "node.spool:Spool.keep_exit"),
    after("node", "node.spool:Spool.let_go"),
    before("api", "store.store:SqlStore.finish_command"),
    after("api", "store.store:SqlStore.finish_command"),
)

DESTROY = (
    before("api", "store.store:SqlStore.transition"),
    after("api", "store.store:SqlStore.transition"),
    before("node", "node.supervisor:Supervisor.destroy"),
    after("node", "node.lives:Lives.drop"),
    after("node", "node.records:Records.write"),
    before("node", "node.cgroups:Cgroups.remove"),
    after("node", "node.runtimes.command_line:CommandLine.delete"),
    after("node", "node.network.network:Network.detach"),
    after("node", "node.layers:Layers._unmount"),
    after("node", "node.btrfs:delete_subvolume"),
    after("node", "node.layers:Layers.destroy"),
    after("node", "node.records:Records.remove"),
    after("api", "providers.local:LocalProvider.destroy"),
    after("api", "control.endings:settle_commands"),
)

# Work on the state of something; the rest formats, parses and looks.
_WORKING = (
    *("control.", "store.store", "store.sqlite", "providers.local", "node.", "blobs.jobs"),
    *("guest.connection", "guest.commands"),
)
_LOOKING = ("node.rpc", "node.declarations", "node.seccomp", "node.images", "node.ops", "node.tasks")


def every(server: CrashServer, act: Callable[[], object]) -> list[Step]:
    """All steps that `act` makes, once each, in their order."""
    with server.recording() as seen:
        act()
    found = [step for step in seen if _works(step.module.removeprefix("skerry.")) and "__" not in step.name]
    return list(dict.fromkeys(found))


def _works(module: str) -> bool:
    return module.startswith(_WORKING) and not module.startswith(_LOOKING)
