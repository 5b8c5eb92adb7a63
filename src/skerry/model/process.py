"""What runs inside a sandbox and what listens there, as told from inside: hostile where root inside wants it so."""

from dataclasses import dataclass

from skerry.model.ids import CommandId


@dataclass(frozen=True, slots=True)
class Process:
    """One process. `argv` is cut at 4 KiB; `state` is the kernel's letter; `command_id` whose descendant it is."""

    pid: int
    ppid: int
    uid: int
    name: str
    argv: tuple[str, ...]
    state: str
    cpu_ms: int
    rss_bytes: int
    age_ms: int
    command_id: CommandId | None = None


@dataclass(frozen=True, slots=True)
class ListeningPort:
    """A TCP socket that listens. `family` is `ipv4` or `ipv6`; the pid is not always known."""

    port: int
    address: str
    family: str
    uid: int
    pid: int | None = None
    command_id: CommandId | None = None
