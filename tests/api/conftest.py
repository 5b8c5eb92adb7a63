"""A real server (uvicorn in a thread of this process) over a fake fleet and a real database, and clients for it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import pytest
import uvicorn
from flaxcloud import FlaxClient
from sqlalchemy import Engine, event

from skerry.api.app import create_app
from skerry.api.http import HttpProtocol
from skerry.api.websocket import MESSAGE_BYTES, WebSocketProtocol
from skerry.clock import SystemClock
from skerry.config import Config
from skerry.control import accounts, sandboxes
from skerry.control.deps import Deps
from skerry.model.account import Account, ApiKey, hash_secret, new_secret
from skerry.model.ids import new_account_id, new_key_id, new_project_id
from skerry.store import open_store
from skerry.testing.fake_provider import FakeProvider

T = TypeVar("T")

HOST = FakeProvider().host


@dataclass(frozen=True)
class Server:
    """`call` runs a coroutine on the server's loop, where its fakes live."""

    url: str
    key: str
    deps: Deps
    provider: FakeProvider
    loop: asyncio.AbstractEventLoop
    statements: "Statements"

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)


@dataclass
class Statements:
    """How many the database was sent."""

    count: int = 0

    def note(self, *_: object) -> None:
        self.count += 1


class Running:
    """Serves in a thread until `stop`. The port is chosen by the kernel."""

    def __init__(self, home: Path, protocol: type[HttpProtocol] = HttpProtocol, **settings: Any) -> None:
        self._home = home
        self._protocol = protocol
        self._settings = {"upload_limit_mb": 8, **settings}
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._uvicorn: uvicorn.Server | None = None
        self.server: Server | None = None

    def start(self) -> Server:
        self._thread.start()
        assert self._up.wait(30)
        assert self.server is not None
        return self.server

    def stop(self) -> None:
        assert self._uvicorn is not None
        self._uvicorn.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        provider = FakeProvider()
        store = await open_store(f"sqlite:///{self._home}/skerry.db")
        config = Config(home=self._home, **self._settings)
        deps = Deps(store, provider, SystemClock(), config)
        key = new_secret()
        await accounts.bootstrap(deps, hash_secret(key))
        settings = uvicorn.Config(
            create_app(deps),
            http=self._protocol,
            ws=WebSocketProtocol,
            ws_max_size=MESSAGE_BYTES,
            ws_per_message_deflate=False,
            host="127.0.0.1",
            port=0,
            log_level="warning",
            timeout_graceful_shutdown=2,
        )
        self._uvicorn = uvicorn.Server(settings)
        serving = asyncio.ensure_future(self._uvicorn.serve())
        while not self._uvicorn.started and not serving.done():  # noqa: ASYNC110 (uvicorn offers no event)
            await asyncio.sleep(0.005)
        port = self._uvicorn.servers[0].sockets[0].getsockname()[1]
        statements = Statements()
        event.listen(Engine, "before_cursor_execute", statements.note)
        loop = asyncio.get_running_loop()
        self.server = Server(f"http://127.0.0.1:{port}", key, deps, provider, loop, statements)
        self._up.set()
        await serving
        event.remove(Engine, "before_cursor_execute", statements.note)
        await provider.close()
        await store.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server a module; each test has an account of its own on it."""
    running = Running(tmp_path_factory.mktemp("home"))
    yield running.start()
    running.stop()


@pytest.fixture
def server(running: Server) -> Iterator[Server]:
    account, key = running.call(new_account(running.deps))
    running.provider.created = 0
    running.provider.built.clear()
    yield replace(running, key=key)
    running.provider.down = False
    running.provider.host = HOST
    running.provider.create_error = None
    running.provider.build_error = None
    running.provider.storage.down = False
    running.provider.faults.clear()
    for sandbox in running.call(running.deps.store.list_sandboxes(account_id=account.id)):
        running.call(sandboxes.destroy(running.deps, account.id, sandbox.id))


async def new_account(deps: Deps) -> tuple[Account, str]:
    secret, now = new_secret(), deps.clock.now()
    account = Account(new_account_id(), "test", "unlimited", new_project_id(), now)
    await deps.store.add_account(account, ApiKey(new_key_id(), account.id, "test", hash_secret(secret), now))
    return account, secret


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[httpx2.Client]:
    """A client of a server that has no place for the files of stopped sandboxes."""
    running = Running(tmp_path, archive_url="none")
    server = running.start()
    headers = {"Authorization": f"Bearer {server.key}"}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=30) as client:
        yield client
    running.stop()


@pytest.fixture
def held(server: Server) -> Iterator[Callable[[str], None]]:
    """Let a verb of the provider wait, until the test's end at the latest."""
    verbs: list[str] = []

    def hold(verb: str) -> None:
        verbs.append(verb)
        server.loop.call_soon_threadsafe(server.provider.hold, verb)

    yield hold
    for verb in verbs:
        server.loop.call_soon_threadsafe(server.provider.let_go, verb)


@pytest.fixture
def flax(server: Server) -> Iterator[FlaxClient]:
    with FlaxClient(api_key=server.key, base_url=server.url) as client:
        yield client


@pytest.fixture
def http(server: Server) -> Iterator[httpx2.Client]:
    headers = {"Authorization": f"Bearer {server.key}"}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=30) as client:
        yield client
