"""Kills a real node at a step of its work: where a function of it begins, or has just returned."""

import asyncio
import json
import os
import secrets
import signal
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.harness import Node, until

from skerry.model.errors import SkerryError


@dataclass(frozen=True, slots=True)
class Step:
    """`where` is `module:qualified name` below `skerry.`."""

    event: str
    where: str

    def __str__(self) -> str:
        return f"{ {'call': 'before', 'return': 'after'}[self.event] }-{self.where}"


def before(where: str) -> Step:
    return Step("call", where)


def after(where: str) -> Step:
    return Step("return", where)


def traced(runtime: str) -> Node:
    """A node that can be killed at a step."""
    node = Node(runtime)
    steps = node.home / "steps"
    steps.mkdir()
    node.extra_env["SKERRY_TEST_STEPS"] = str(steps)
    return node


async def crash(node: Node, step: Step, call: Coroutine[Any, Any, object]) -> bool:
    """Do `call`, kill the node when it is at `step`, and start it again; whether the call was answered before."""
    await _arm(node, step)
    calling = asyncio.ensure_future(call)
    await until(lambda: _stopped(node) or calling.done(), f"{step} is reached (was it renamed?)")
    if not _stopped(node):
        calling.result()
        await until(lambda: _stopped(node), f"{step} is reached after the call")
    node.kill(signal.SIGKILL)
    await asyncio.wait([calling], timeout=30)
    error = calling.exception()
    assert error is None or isinstance(error, SkerryError), error
    await node.start()
    return error is None


async def _arm(node: Node, step: Step) -> None:
    steps = Path(node.extra_env["SKERRY_TEST_STEPS"])
    module, _, name = step.where.partition(":")
    token = secrets.token_hex(8)
    told = {"event": step.event, "module": f"skerry.{module}", "name": name, "record": False, "token": token}
    (steps / "node.step").write_text(json.dumps(told))
    os.kill(node.pid, signal.SIGUSR1)
    armed = steps / "node.armed"
    await until(lambda: armed.exists() and armed.read_text() == token, "the node is armed")


def _stopped(node: Node) -> bool:
    return Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
