"""Fixtures: `server` (gVisor, or what `@on_both` says), `client`, `sandbox`. Servers live for the whole session."""

import os
from collections.abc import Callable, Iterator

import pytest
from acceptance.servers import Server

from skerry import Sandbox, Skerry


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], Server]]:
    """The server of a runtime, started when it is first asked for."""
    if os.geteuid() != 0:
        pytest.skip("sandboxes need root")
    running: dict[str, Server] = {}

    def of(runtime: str) -> Server:
        if runtime not in running:
            server = Server(runtime)
            try:
                server.start()
            except BaseException:
                server.stop()  # one that does not answer runs all the same
                raise
            running[runtime] = server
            with server.client() as client:
                for box in client.list():  # what an earlier session left
                    box.destroy()
                for snapshot in client.snapshots.list():
                    snapshot.delete()
                for _ in client.templates.build("python"):
                    pass
        return running[runtime]

    yield of
    for server in running.values():
        server.stop()


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> str:
    """`runsc`, unless the test is marked with `on_both`."""
    return getattr(request, "param", "runsc")


@pytest.fixture
def server(servers: Callable[[str], Server], runtime: str) -> Server:
    """A running server with the python template built."""
    return servers(runtime)


@pytest.fixture
def client(server: Server) -> Iterator[Skerry]:
    with server.client() as client:
        yield client


@pytest.fixture
def sandbox(client: Skerry) -> Iterator[Sandbox]:
    """A fresh sandbox of the python template, destroyed afterwards."""
    with client.create("python") as box:
        yield box
