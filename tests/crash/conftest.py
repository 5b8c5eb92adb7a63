"""Fixture `crash`: a server to kill parts of, checked after each test for whatever that left. One a runtime."""

import os
from collections.abc import Callable, Iterator

import pytest
from acceptance.servers import eventually
from crash.instances import SETTLED_S, CrashServer
from crash.leftovers import held_by

Leftovers = frozenset[str]


@pytest.fixture(scope="package")
def crash_servers() -> Iterator[Callable[[str], tuple[CrashServer, Leftovers]]]:
    """The server of a runtime, and what it holds of the host without a sandbox."""
    if os.geteuid() != 0:
        pytest.skip("sandboxes need root")
    running: dict[str, tuple[CrashServer, Leftovers]] = {}

    def of(runtime: str) -> tuple[CrashServer, Leftovers]:
        if runtime not in running:
            server = CrashServer(runtime)
            server.prepare()
            server.start()
            running[runtime] = server, frozenset()
            _empty(server)
            running[runtime] = server, held_by(server.config)
        return running[runtime]

    yield of
    for server, _ in running.values():
        server.stop()


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> str:
    """`crun`, the fastest, unless the test or SKERRY_TEST_CRASH_RUNTIME says otherwise."""
    return getattr(request, "param", os.environ.get("SKERRY_TEST_CRASH_RUNTIME", "crun"))


@pytest.fixture
def crash(crash_servers: Callable[[str], tuple[CrashServer, Leftovers]], runtime: str) -> Iterator[CrashServer]:
    server, empty = crash_servers(runtime)
    server.rest()
    yield server
    for part in ("node", "api"):
        server.go_on(part)
    _empty(server)
    try:
        eventually("nothing is left", lambda: held_by(server.config) == empty, within_s=SETTLED_S, every_s=0.1)
    except AssertionError:
        now = held_by(server.config)
        raise AssertionError(f"left: {sorted(now - empty)}; gone: {sorted(empty - now)}\n{server.tail()}") from None


def _empty(server: CrashServer) -> None:
    with server.client() as client:
        for box in server.settled(client):
            box.destroy()
        for snapshot in client.snapshots.list():
            snapshot.delete()
