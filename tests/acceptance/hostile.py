"""What the attacks have in common: both users, a program of attacks inside, and whether all is still well.

An attack may end the sandbox that makes it, which then says why. It never touches a neighbour, the server or the host.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import pytest
from acceptance.servers import Server, eventually
from node.boxes import static_program

from skerry import Sandbox, Skerry, SkerryError

WORKSPACE_PROGRAM = "/workspace/attacks"

as_root_and_user = pytest.mark.parametrize("user", ["root", "1000"], ids=["root", "user"])


@cache
def _program() -> bytes:
    return static_program("attacks").read_bytes()


def arm(box: Sandbox) -> None:
    """Put the program of attacks (tests/node/attacks.c) into a sandbox, where every user may run it."""
    box.files.write(WORKSPACE_PROGRAM, _program(), mode="0755")


DETECTED_S = 150.0  # the longest that it takes to find out that an sbxd that is there does not answer


def answers(box: Sandbox, within_s: float = 30.0) -> None:
    """Fails unless the sandbox runs a new program to its right end in time. No shell: it may be spoilt."""

    def well() -> bool:
        result = box.commands.run(["echo", "well"], timeout_s=20)
        return (result.stdout, result.exit_code) == ("well\n", 0)

    eventually("the sandbox answers", well, within_s=within_s, every_s=0.2)


def answers_or_says_why(box: Sandbox, causes: Sequence[str]) -> None:
    """After an attack that a sandbox may not survive: it answers; or tells why no command starts; or why it died."""
    until = time.monotonic() + DETECTED_S
    while box.refresh().status != "failed":
        try:
            result = box.commands.run(["echo", "well"], timeout_s=20)
        except SkerryError as error:
            said = error.message
        else:
            if result.stdout == "well\n" or (result.reason == "not_started" and result.message):
                return
            said = str(result)
        assert time.monotonic() < until, said
        time.sleep(0.3)
    assert box.info.reason in causes, box.info
    assert box.info.message


def unharmed(server: Server) -> dict[str, int]:
    """The pids of the server's parts: the same before and after, or one of them was ended."""
    return {part: server.pid(part) for part in ("supervisor", "node", "api")}


def latencies_ms(run: Callable[[], object], count: int) -> list[float]:
    """The sorted times of `count` calls, one after the other."""
    taken: list[float] = []
    for _ in range(count):
        begun = time.perf_counter()
        run()
        taken.append((time.perf_counter() - begun) * 1000)
    return sorted(taken)


def true_once(box: Sandbox) -> None:
    assert box.commands.run(["true"]).exit_code == 0


@contextmanager
def watched(server: Server, client: Skerry, **limits: int) -> Iterator[Sandbox]:
    """A sandbox to attack from. Afterwards a neighbour of it, and the parts of the server, are as they were before."""
    before = unharmed(server)
    with client.create("python") as neighbour, client.create("python", **limits) as attacker:
        neighbour.files.write("mine", b"untouched")
        yield attacker
        answers(neighbour)
        assert neighbour.files.read("mine") == b"untouched"
    assert unharmed(server) == before
