"""A whole server whose parts can be stopped at a step of their work, killed there, and started again.

What is real: the processes, the database, the runtimes, the layers, the networks. The one template is a busybox that is
put where a built `blank` lies, so that no run waits for a build.
"""

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from acceptance.servers import Server, eventually, test_home
from node.harness import make_root

from skerry import Sandbox, Skerry, SkerryError
from skerry.config import Config
from skerry.node import declarations
from skerry.node.layers import Layers
from skerry.node.trees import remove_tree

T = TypeVar("T")
TEMPLATE = "blank"
# A moment after which whatever was interrupted has to be settled: two passes of the reconciler and a start.
SETTLED_S = 20.0
SETTLED = ("ready", "active", "stopped", "failed")
_PATIENCE = 4
_TRACER = Path(__file__).with_name("tracer") / "sitecustomize.py"


@dataclass(frozen=True, slots=True)
class Step:
    """A point in the work of a part: where a function of it begins (`call`) or has just returned (`return`)."""

    part: str
    event: str
    module: str
    name: str

    def __str__(self) -> str:
        when = {"call": "before", "return": "after"}[self.event]
        return f"{self.part}-{when}-{self.module.removeprefix('skerry.')}:{self.name}"


def after(part: str, where: str) -> Step:
    module, _, name = where.partition(":")
    return Step(part, "return", f"skerry.{module}", name)


def before(part: str, where: str) -> Step:
    module, _, name = where.partition(":")
    return Step(part, "call", f"skerry.{module}", name)


@dataclass(frozen=True, slots=True)
class Told(Generic[T]):
    """What a client was told of its call: an answer or an error, never both."""

    answer: T | None
    error: Exception | None


class CrashServer(Server):
    """A `Server` on a home of its own, with a busybox as its template, and a tracer in its parts."""

    def __init__(self, runtime: str, name: str = "crash", **settings: Any) -> None:
        super().__init__(runtime)
        home = {"home": test_home() / f"{name}-{runtime}", "default_template": TEMPLATE}
        # A port of its own instead of a new one with each start, so that clients find the server again.
        own = {"pool_mb": 1024, "command_timeout_s": 60, "port": _free_port()}
        self.config = Config(**{**self.config.model_dump(), **home, **own, **settings})
        self.log = self.config.home / "serve.log"
        self._steps = self.config.home / "steps"
        self._deaths = 0
        self.extra_env = {"PYTHONPATH": str(self._steps), "SKERRY_TEST_STEPS": str(self._steps)}

    def prepare(self) -> None:
        """Everything that a first start needs: the template and the tracer. Safe to call twice."""
        self.config.home.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._steps.mkdir(exist_ok=True)
        self._steps.chmod(0o777)  # the API's user writes its answers there
        shutil.copy(_TRACER, self._steps)
        asyncio.run(_seed(self.config))

    def start(self) -> None:
        """As a `Server`'s; one that does not come up is not left behind."""
        self._deaths = 0
        try:
            super().start()
        except AssertionError:
            self.stop()
            raise

    # -- stopping at a step ------------------------------------------------------------------------------------

    def arm(self, step: Step) -> None:
        """Have a part stop itself at a step that it has not reached yet."""
        self._tell(step.part, {"event": step.event, "module": step.module, "name": step.name, "record": False})

    def disarm(self, part: str) -> None:
        self._tell(part, {"event": "", "module": "", "name": "", "record": False})

    @contextmanager
    def recording(self) -> Generator[list[Step]]:
        """Every step that node and API make meanwhile, in the order of their first time."""
        found: list[Step] = []
        for part in ("node", "api"):
            (self._steps / f"{part}.seen").unlink(missing_ok=True)
            self._tell(part, {"event": "", "module": "", "name": "", "record": True})
        yield found
        for part in ("node", "api"):
            self.disarm(part)
            lines = (self._steps / f"{part}.seen").read_text().splitlines()
            found += [Step(part, *json.loads(line)) for line in lines]

    def _tell(self, part: str, step: dict[str, object]) -> None:
        token = secrets.token_hex(8)
        (self._steps / f"{part}.step").write_text(json.dumps({**step, "token": token}))
        armed = self._steps / f"{part}.armed"
        os.kill(self.pid(part), signal.SIGUSR1)
        eventually(f"the {part} is armed", lambda: armed.exists() and armed.read_text() == token)

    def stopped(self, part: str) -> bool:
        """Whether a part has reached the step it was armed for."""
        try:
            return Path(f"/proc/{self._pids()[part]}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        except (KeyError, OSError):
            return False

    def rest(self) -> None:
        """Begin anew where parts have died so often that the supervisor takes its time to start them again."""
        if self._deaths >= _PATIENCE:
            self.stop()
            self.start()

    def go_on(self, part: str) -> None:
        """Let a part go on that a failed test has left stopped."""
        if self.stopped(part):
            os.kill(self._pids()[part], signal.SIGCONT)

    # -- killing -----------------------------------------------------------------------------------------------

    def crash(self, step: Step, victim: str, act: Callable[[], T]) -> Told[T]:
        """Do `act` (a client's call), and when `step` is reached, kill: `node`, `api`, `both`, or `supervisor`.

        Returns when the server answers again and the call has ended.
        """
        self.arm(step)
        with calling(act) as call:
            eventually(f"{step} is reached (was it renamed?)", lambda: self.stopped(step.part) or not call.running)
            # Some steps come a moment after the answer: the end of a command is told first, and then put on disk.
            eventually(f"{step} is reached after the call had ended: {call.told}", lambda: self.stopped(step.part))
            self.kill_and_restart(victim, step.part)
        assert call.told is not None
        return call.told

    def kill_and_restart(self, victim: str, stopped: str = "") -> None:
        """`kill -9`; then let go on what was only stopped, and wait until the server answers."""
        if victim == "supervisor":
            self.kill("supervisor")
            eventually("its parts die with the supervisor", lambda: not self.orphans())
            self.start()
            return
        parts = ("node", "api") if victim == "both" else (victim,)
        old = {part: self.kill(part) for part in parts}
        self._deaths += 1
        if stopped and stopped not in parts:
            os.kill(self.pid(stopped), signal.SIGCONT)
        for part, pid in old.items():
            self.restarted(part, pid)

    def orphans(self) -> list[str]:
        """Parts of this instance without a supervisor."""
        mark = f"SKERRY_HOME={self.config.home}".encode()
        found: list[str] = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if b"skerry.serve" in (entry / "cmdline").read_bytes() and mark in (entry / "environ").read_bytes():
                    found.append(entry.name)
            except OSError:
                continue
        return found if self._pids() == {} else []

    def settled(self, client: Skerry) -> list[Sandbox]:
        """Wait until no sandbox is on its way to a state any more; all that are there."""
        within = partial(eventually, within_s=SETTLED_S, every_s=0.1)
        within("no state is stuck", lambda: all(b.status in SETTLED for b in client.list()))
        return client.list().all()

    # -- what is on record -------------------------------------------------------------------------------------

    def commands_of(self, sandbox_id: str) -> list[str]:
        """The ids of a sandbox's commands, from the database: a client that got no answer has none to ask with."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as database:
            rows = database.execute("SELECT id FROM commands WHERE sandbox_id = ? ORDER BY seq", (sandbox_id,))
            return [row[0] for row in rows]

    @property
    def database(self) -> Path:
        return self.config.home / "api" / "skerry.db"

    def only_client(self) -> Skerry:
        """A client that asks once: what it is told is what the server said."""
        return self.client(timeout_s=40, retries=0)


class _Call(Generic[T]):
    """A client's call in a thread of its own."""

    def __init__(self, act: Callable[[], T]) -> None:
        self._act = act
        self.told: Told[T] | None = None
        self.thread = threading.Thread(target=self._run)

    @property
    def running(self) -> bool:
        return self.thread.is_alive()

    def _run(self) -> None:
        try:
            self.told = Told(self._act(), None)
        except SkerryError as error:
            self.told = Told(None, error)


@contextmanager
def calling(act: Callable[[], T]) -> Generator[_Call[T]]:
    """A call under way. It has to have ended, however, a while after the block."""
    call = _Call(act)
    call.thread.start()
    try:
        yield call
    finally:
        call.thread.join(60)
    assert not call.running, "the client's call hangs"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _seed(config: Config) -> None:
    """Put a busybox where the built template lies."""
    template = declarations.load(declarations.builtin_directory() / f"{TEMPLATE}.toml")
    layers = Layers(config)
    await layers.open()
    try:
        home = layers.pool.images / template.digest()
        if home.exists():
            return
        unfinished = home.with_name("seed")
        if unfinished.exists():
            layers.pool.trees.remove_image(unfinished / "root")
            remove_tree(unfinished)
        unfinished.mkdir(mode=0o700)
        layers.pool.trees.make_image(unfinished / "root")
        make_root(unfinished / "root")
        (unfinished / "root").chmod(0o755)
        about = {"name": TEMPLATE, "suite": template.suite, "size_bytes": 0}
        (unfinished / "image.json").write_text(json.dumps(about))
        layers.pool.trees.seal_image(unfinished / "root")
        unfinished.rename(home)
    finally:
        await layers.close()
