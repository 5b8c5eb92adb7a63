"""GET /v1/leaks on the wire (snake_case)."""

from skerry.wire.base import Answer


class LeakView(Answer):
    """`kind`: container, mount, netns, interface, nft_rules, subvolume, quota_group, half_tree, bundle, stat_cache (the
    node holds it and has no record of it), sandbox, tree, snapshot (records and node disagree), or archives (the object
    store has what no record needs). `fate`: what will happen to it, or how to remove it. Sizes that are not known are
    null.
    """

    kind: str
    name: str
    size_bytes: int | None = None
    fate: str


class LeaksView(Answer):
    """`leaks` is what is held and on no record. `waiting` is what is so for the moment: it is in its time of grace.

    `unchecked` says what could not be looked at.
    """

    leaks: list[LeakView]
    waiting: list[LeakView]
    unchecked: list[str]
