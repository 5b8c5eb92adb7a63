"""`skerry-node`: the root process that owns the sandboxes of one host. Builds the parts, answers the socket, ends.

SIGTERM and SIGINT end it and leave every sandbox running: the next start takes them over. The op `shutdown` with `stop`
ends the sandboxes' processes first; their files stay, and the next start reports them as dead by `host_restart`.
No HTTP, no database, no account.
"""

import asyncio
import fcntl
import os
import pwd
import resource
import signal
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import structlog
import uvloop

from skerry import logs
from skerry.config import Config
from skerry.model.capability import Capabilities, Probe
from skerry.model.errors import Refused, SkerryError
from skerry.model.sandbox import NetworkMode
from skerry.node.images import Images
from skerry.node.object_store import open_archiver, storage_probe
from skerry.node.open_parts import MakeArchiver, MakeImages, OpenedParts, open_parts
from skerry.node.ops import Ops
from skerry.node.parts import Parts
from skerry.node.records import Records
from skerry.node.rpc import Server
from skerry.node.sample_rings import SampleRings
from skerry.node.sampler import INTERVAL_S, Sampler
from skerry.node.spool import Spool
from skerry.node.supervisor import Supervisor
from skerry.node.tasks import root_cause, spawn
from skerry.node.tree_keeper import TreeKeeper

INODES_EVERY_S = 5.0
TEND_EVERY_S = 30.0
SYNC_EVERY_S = 0.5
SWEEP_EVERY_S = 3600.0
OPEN_FILES = 65_536
THREADS = 16

log = structlog.get_logger()

Opener = Callable[[], Awaitable[OpenedParts]]


def run(config: Config, make_images: MakeImages = Images, make_archiver: MakeArchiver = open_archiver) -> int:
    """The node's main: returns its exit code when it has ended. Needs root.

    `make_images` and `make_archiver` are for tests.

    Raises:
        Refused: It is not root, another node of this instance runs, or the host cannot do it; the message says what.
    """
    if os.geteuid() != 0:
        raise Refused("skerry-node needs root: it mounts, makes cgroups and network namespaces.")
    logs.configure(config.log_level, config.log_format)
    _raise_open_files()
    for directory, mode in ((config.home, 0o711), (config.run_dir, 0o711), (config.node_dir, 0o711)):
        directory.mkdir(mode=mode, parents=True, exist_ok=True)
    with _only_one(config.run_dir / "node.lock"), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(config, lambda: open_parts(config, make_images, make_archiver)))


async def serve(config: Config, opener: Opener) -> int:
    """Answer the socket until a signal or `shutdown`. `opener` is replaced by tests."""
    stop = asyncio.Event()
    # One slow disk must not keep the others waiting for a thread.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="node"))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    ops = Ops(stop)
    uid, gid = _api_user(config)
    server = Server(config.node_socket, ops.table(), frozenset({0, uid}), gid)
    async with _background() as group:
        await server.listen(group)
        try:
            await _work(config, opener, ops, server, group, stop)
        finally:
            await server.close()
    return 0


async def _work(
    config: Config, opener: Opener, ops: Ops, server: Server, group: asyncio.TaskGroup, stop: asyncio.Event
) -> None:
    opened = await opener()
    try:
        spool = Spool(
            config.node_dir / "spool",
            config.output_cap_mb << 20,
            config.output_keep_hours * 3600.0,
            sandbox_cap_bytes=config.sandbox_output_mb << 20,
        )
        records = Records(config.node_dir / "sandboxes")
        first_range = int(config.instance, 16)
        supervisor = Supervisor(opened.parts, records, spool, group, first_range)
        keeper = TreeKeeper(opened.parts, supervisor, group)
        sampler = Sampler(opened.parts, SampleRings(config.node_dir / "samples"), supervisor.list)
        storing = group.create_task(storage_probe(config))  # a store that does not answer holds up no sandbox
        await supervisor.adopt()
        capabilities = await _capabilities(config, opened.parts, await storing)
        ops.open(supervisor, spool, opened.parts, group, capabilities, sampler, keeper)
        spawn(group, _every(INODES_EVERY_S, opened.parts.layers.enforce_inodes), "inodes")
        spawn(group, _every(TEND_EVERY_S, supervisor.tend), "tend")
        spawn(group, _every(TEND_EVERY_S, keeper.tidy), "tidy")
        spawn(group, _every(INTERVAL_S, sampler.sample), "sample")
        spawn(group, _every(SYNC_EVERY_S, lambda: asyncio.to_thread(records.sync)), "sync")
        spawn(group, _every(SWEEP_EVERY_S, lambda: asyncio.to_thread(spool.sweep, time.time())), "sweep")
        log.info("the node is ready", sandboxes=len(supervisor.list()), runtime=opened.parts.runtime.name)
        await stop.wait()
        # Calls end first, and what they had begun is undone while the parts are still there.
        await server.close()
        await supervisor.quiet()
    finally:
        await (opened.leave() if ops.running_sandboxes() else opened.close())
    log.info("the node ends", sandboxes_left_running=ops.running_sandboxes())


async def _every(seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    """A process loop: do `work` now and then, whatever it raised the time before."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("a periodic task failed; it is tried again")
        await asyncio.sleep(seconds)


@asynccontextmanager
async def _background() -> AsyncGenerator[asyncio.TaskGroup]:
    """A task group whose tasks are cancelled when the body has ended: they are loops and calls that would not end."""
    with suppress(_Ended):
        try:
            async with asyncio.TaskGroup() as group:
                yield group
                raise _Ended
        except BaseExceptionGroup as errors:
            rest = errors.split(_Ended)[1]
            if rest is not None:
                raise root_cause(rest, SkerryError) from None


class _Ended(Exception):
    """Ends a task group from inside."""


async def _capabilities(config: Config, parts: Parts, storage: Probe) -> Capabilities:
    disk = os.statvfs(config.home)
    probes = [*await parts.layers.probes(), *await parts.network.probes(), storage]
    return Capabilities(
        provider="local",
        runtime=parts.runtime.name,
        runtime_version=await parts.runtime.version(),
        shares_kernel=parts.runtime.shares_kernel,
        network_modes=tuple(str(mode) for mode in NetworkMode),
        keeps_memory=False,
        disk_limit=parts.layers.disk_limit,
        memory_mb=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
        cpu_millis=1000 * (os.cpu_count() or 1),
        disk_mb=min(config.pool_mb, disk.f_blocks * disk.f_frsize >> 20),
        storage=config.archive_place,
        probes=tuple(probes),
    )


@contextmanager
def _only_one(path: Path) -> Generator[None]:
    """Hold the lock of this instance's node."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(fd, 32, 0).decode().strip()
            raise Refused(f"A node of this instance runs already (pid {pid}). `skerry down` ends it.") from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


def _api_user(config: Config) -> tuple[int, int]:
    """Who may call besides root. A user that does not exist yet: root alone, until the node is started again."""
    try:
        entry = pwd.getpwnam(config.user)
    except KeyError:
        log.warning("the API's user does not exist; only root may call the node", user=config.user)
        return 0, 0
    return entry.pw_uid, entry.pw_gid


def _raise_open_files() -> None:
    """Two descriptors a running command, one or two a sandbox and a call: the usual 1024 would not last."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main(config: Config) -> int:
    """`run`, with errors told on stderr: for a process of its own."""
    try:
        return run(config)
    except SkerryError as error:
        print(f"skerry-node: {error.message}", file=sys.stderr)
        return 1
