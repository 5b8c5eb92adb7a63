"""What runs and listens inside, on the wire (snake_case)."""

from datetime import datetime

from skerry.wire.base import Answer


class ProcessView(Answer):
    """`state` is `running`, `sleeping`, `waiting`, `stopped`, `zombie`, `idle` or `unknown`; `argv` is cut at 4 KiB."""

    pid: int
    ppid: int
    uid: int
    name: str
    argv: list[str]
    state: str
    cpu_ms: int
    memory_bytes: int
    started_at: datetime
    command_id: str | None = None


class ProcessList(Answer):
    """GET …/processes."""

    data: list[ProcessView]


class PortView(Answer):
    """A TCP socket that listens. `family` is `ipv4` or `ipv6`; not every runtime tells the process."""

    port: int
    address: str
    family: str
    uid: int
    pid: int | None = None
    command_id: str | None = None


class PortList(Answer):
    """GET …/ports."""

    data: list[PortView]
