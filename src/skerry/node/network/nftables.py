"""Loading, reading and watching the firewall's tables. Knows nothing of what they say.

Blocking, except for `Watch`; works in the network namespace of the calling thread.
"""

import asyncio
import json
import socket
import struct
import subprocess
from collections.abc import Callable
from typing import Any

from skerry.model.errors import Refused

_DEADLINE_S = 15.0
_NETLINK_NETFILTER = 12
_GROUP_NFTABLES = 7
_SUBSYSTEM_NFTABLES = 10
_REMOVALS = {_SUBSYSTEM_NFTABLES << 8 | kind for kind in (2, 5, 8, 11, 14)}  # table, chain, rule, set, element


def load(text: str) -> None:
    """Load a ruleset in one transaction: all of it, or nothing.

    Raises:
        Refused: nft is missing, or would not; the message has its words.
    """
    _nft("-f", "-", stdin=text)


def listing(table: str, family: str = "inet") -> str:
    """A table as text, without counters and elements of sets; empty when there is none."""
    try:
        return _nft("-s", "-t", "list", "table", family, table)
    except Refused:
        return ""


def delete(table: str) -> None:
    """Delete a table. Absent: nothing happens. Raises Refused."""
    _nft("-f", "-", stdin=f"table inet {table} {{}}\ndelete table inet {table}\n")


def elements(table: str, name: str) -> list[str]:
    """The elements of a set of plain strings; none when the set or its table does not exist."""
    try:
        found = json.loads(_nft("-j", "list", "set", "inet", table, name))["nftables"]
    except Refused:
        return []
    return [str(e) for item in found for e in item.get("set", {}).get("elem", [])]


def base_chains(hooks: tuple[str, ...]) -> list[dict[str, Any]]:
    """All base chains at these hooks, of every table on the host: family, table, name, hook, policy."""
    found = json.loads(_nft("-j", "list", "chains"))["nftables"]
    return [item["chain"] for item in found if item.get("chain", {}).get("hook") in hooks]


def _nft(*arguments: str, stdin: str = "") -> str:
    command = ["nft", *arguments]
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    except FileNotFoundError as error:
        raise Refused("The program 'nft' is not installed. Install the package nftables.") from error
    except subprocess.TimeoutExpired as error:
        raise Refused(f"nft did not end within {_DEADLINE_S:.0f} s: {' '.join(arguments)}.") from error
    # Its words count as well as its status: in a process that reaps all children, the status may be lost.
    if done.returncode or "Error:" in done.stderr:
        lacks = " This kernel needs nf_tables, NAT and conntrack (≥ 5.10)." if "not supported" in done.stderr else ""
        raise Refused(f"nft {' '.join(arguments)} failed: {done.stderr.strip()}{lacks}")
    return done.stdout


class Watch:
    """Calls `on_removal` in the event loop soon after something was removed from a table, by whomever.

    `systemctl restart nftables` flushes every rule on a host, those of the sandboxes too: they must come back at once.
    """

    def __init__(self, table: str, on_removal: Callable[[], None]) -> None:
        self._table = table.encode() + b"\0"
        self._on_removal = on_removal
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Start. Needs a running event loop; watches the network namespace of the calling thread. Raises OSError."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _NETLINK_NETFILTER)
        self._socket.bind((0, 1 << (_GROUP_NFTABLES - 1)))
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def close(self) -> None:
        """Stop. Safe to call twice."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _read(self) -> None:
        concerned = False
        while self._socket is not None:
            try:
                data = self._socket.recv(1 << 18)
            except BlockingIOError:
                break
            except OSError:  # ENOBUFS: messages were lost, ours may be among them
                concerned = True
                continue
            concerned = concerned or removes(data, self._table)
        if concerned:
            self._on_removal()


def removes(data: bytes, table: bytes) -> bool:
    """Whether netlink messages tell of a removal from `table` (NUL-terminated name)."""
    position = 0
    while position + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, position)
        if length < 16:
            break
        if kind in _REMOVALS and table in data[position : position + length]:
            return True
        position += (length + 3) & ~3
    return False
