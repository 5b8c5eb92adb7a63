"""The steps of stop, archive, resume, restore, snapshot, its deletion and fork at which the parts are killed."""

from crash.instances import after, before

STOP = (
    before("api", "store.store:SqlStore.transition"),
    after("api", "store.store:SqlStore.transition"),
    before("node", "node.supervisor:Supervisor.stop"),
    after("node", "node.records:Records.write"),
    after("node", "node.lives:Lives.drop"),
    after("node", "node.runtimes.command_line:CommandLine.delete"),
    after("node", "node.network.network:Network.detach"),
    after("node", "node.layers:Layers._put_away"),
    after("node", "node.trees:BtrfsTrees.seal"),
    after("node", "node.trees:BtrfsTrees.flush"),
    after("node", "node.supervisor:Supervisor._put_down"),
    after("api", "providers.local:LocalProvider.stop"),
)

ARCHIVE = (
    before("api", "control.archives:store"),
    before("node", "node.tree_keeper:TreeKeeper.archive"),
    before("node", "blobs.jobs:_answers"),
    after("node", "blobs.job:decode_answer"),
    after("node", "blobs.jobs:Archiver.archive"),
    after("api", "providers.local:LocalProvider.archive"),
    before("api", "control.stopping:_archived"),
    after("api", "control.stopping:_archived"),
)

RESUME = (
    before("api", "store.store:SqlStore.transition"),
    after("api", "store.store:SqlStore.transition"),
    after("api", "control.resuming:_make_ready"),
    before("node", "node.supervisor:Supervisor._resume"),
    after("node", "node.records:Records.write"),
    after("node", "node.layers:Layers._put_away"),
    after("node", "node.layers:Layers._lay"),
    after("node", "node.layers:Layers._resume"),
    after("node", "node.runtimes.command_line:CommandLine.start"),
    after("node", "node.steps:start"),
    after("node", "node.supervisor:Supervisor._make"),
    after("api", "providers.local:LocalProvider.create"),
    before("api", "control.making:created"),
    after("api", "control.making:created"),
)

RESTORE = (
    before("api", "control.archives:fetch"),
    before("node", "node.tree_keeper:TreeKeeper.fetch"),
    after("node", "node.captures:Captures.begin"),
    after("node", "blobs.job:decode_answer"),
    after("node", "blobs.jobs:Archiver.fetch"),
    before("node", "node.captures:Captures.finish"),
    after("node", "node.trees:BtrfsTrees.flush"),
    after("node", "node.captures:Captures._finish"),
    after("api", "providers.local:LocalProvider.fetch"),
    after("node", "node.captures:Captures.hand_over"),
    after("node", "node.layers:Layers._resume"),
    after("node", "node.supervisor:Supervisor._make"),
    after("api", "control.making:created"),
)

SNAPSHOT = (
    before("api", "store.store:SqlStore.add_snapshot"),
    after("api", "store.store:SqlStore.add_snapshot"),
    before("node", "node.tree_keeper:TreeKeeper.capture"),
    after("node", "node.captures:Captures._begin"),
    after("node", "node.trees:BtrfsTrees.copy"),
    after("node", "node.captures:Captures._finish"),
    after("api", "providers.local:LocalProvider.capture"),
    before("api", "store.store:SqlStore.move_snapshot"),
    after("api", "store.store:SqlStore.move_snapshot"),
    after("node", "blobs.jobs:Archiver.archive"),
    before("api", "control.snapshots:_note"),
    after("api", "control.snapshots:_note"),
)

DELETE = (
    before("api", "store.store:SqlStore.move_snapshot"),
    after("api", "store.store:SqlStore.move_snapshot"),
    before("node", "node.tree_keeper:TreeKeeper.drop"),
    before("node", "node.trees:BtrfsTrees.remove"),
    after("node", "node.btrfs:delete_subvolume"),
    after("node", "node.captures:Captures.remove"),
    after("api", "providers.local:LocalProvider.drop"),
    after("api", "store.store:SqlStore.remove_snapshot"),
)

FORK = (
    before("api", "control.placing:hold"),
    after("node", "node.captures:Captures._finish"),
    after("api", "control.placing:hold"),
    before("api", "store.store:SqlStore.add_sandbox"),
    after("api", "store.store:SqlStore.add_sandbox"),
    after("node", "node.layers:Layers._lay"),
    after("node", "node.layers:Layers._make"),
    after("node", "node.steps:start"),
    after("node", "node.supervisor:Supervisor._make"),
    after("api", "providers.local:LocalProvider.create"),
    after("api", "control.making:created"),
    before("node", "node.tree_keeper:TreeKeeper.drop"),
)
