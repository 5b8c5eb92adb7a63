"""The composition root: the only module that knows the deciding and the doing wing, and puts them together.

`serve` (root) keeps two processes alive: the node (root) and the API, which gives its privileges up. The listening
socket is the supervisor's and is inherited, so that a restart of the API refuses nobody and keeps its port.
"""

import asyncio
import fcntl
import os
import pwd
import resource
import shutil
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from skerry import instance, logs, supervisor
from skerry.config import Config, load
from skerry.model.account import hash_secret, new_secret
from skerry.model.capability import Probe
from skerry.model.errors import Conflict, Refused, SkerryError

LISTEN_FD = "SKERRY_LISTEN_FD"
KEEP_ALIVE_S = 75  # longer than our client keeps an idle connection, so that it never writes into a closing one
BACKLOG = 2048


def serve(config: Config) -> int:
    """Run the server in the foreground until SIGTERM. Root only.

    Raises:
        Refused: Not root, or no such user.
        Conflict: The instance runs already, or the port is taken.
    """
    if os.geteuid() != 0:
        raise Refused("The server makes sandboxes, mounts and networks: run it as root (sudo skerry serve).")
    logs.configure(config.log_level)
    find_programs()
    prepare(config)
    lock = _lock(config)
    _make_key(config)  # before the address is told: whoever waits for that reads the key next
    listener = _listen(config)
    instance.trouble_file(config).unlink(missing_ok=True)
    instance.revision_file(config).write_text(instance.installed_revision(config))
    env = {**os.environ, **environment(config), "SKERRY_SUPERVISOR": str(os.getpid())}
    child = [sys.executable, "-m", "skerry.serve"]
    try:
        supervisor.supervise(
            [
                supervisor.Child("node", [*child, "node"], env),
                supervisor.Child(
                    "api", [*child, "api"], {**env, LISTEN_FD: str(listener.fileno())}, [listener.fileno()]
                ),
            ]
        )
    finally:
        instance.url_file(config).unlink(missing_ok=True)
        os.close(lock)
    return 0


def find_programs() -> None:
    """Have the administrator's programs in PATH: `su` without a dash gives root the path of a user."""
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    missing = [where for where in ("/usr/sbin", "/sbin") if where not in path]
    os.environ["PATH"] = os.pathsep.join([*path, *missing])


def environment(config: Config) -> dict[str, str]:
    """The settings as the environment that gives exactly them again."""
    return {f"SKERRY_{name.upper()}": str(value) for name, value in config.model_dump().items()}


def prepare(config: Config) -> None:
    """Make the directories of the instance, with their owners. Safe to call twice.

    Raises:
        Refused: There is no such user.
    """
    user = _user(config)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # 0711: the API's user passes through to its own directory and to the node's socket, and root of a user namespace
    # to its sandbox's files; neither lists anything.
    for directory in (config.home, config.run_dir, config.node_dir):
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o711)
    api = config.home / "api"
    api.mkdir(exist_ok=True)
    api.chmod(0o700)
    os.chown(api, user.pw_uid, user.pw_gid)


def _user(config: Config) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(config.user)
    except KeyError:
        raise Refused(
            f"There is no user '{config.user}' for the API to run as. `./skerry up` makes it, or: "
            f"useradd --system --no-create-home --shell /usr/sbin/nologin {config.user}"
        ) from None


def _lock(config: Config) -> int:
    handle = os.open(instance.pid_file(config), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise Conflict(f"The server of {config.home} runs already. `skerry down` ends it.") from None
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    return handle


def _listen(config: Config) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        raise Conflict(
            f"Cannot listen on {config.host} port {config.port}: {error.strerror}. End what holds it, or give --port."
        ) from error
    listener.listen(BACKLOG)
    host, port = str(listener.getsockname()[0]), listener.getsockname()[1]
    # Whoever listens everywhere is reached on the loopback.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    shown = f"[{host}]" if ":" in host else host
    instance.url_file(config).write_text(f"http://{shown}:{port}\n")
    return listener


def _make_key(config: Config) -> None:
    path = instance.key_file(config)
    if path.exists():
        return
    unfinished = path.with_name(path.name + ".new")
    unfinished.unlink(missing_ok=True)
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(new_secret() + "\n")
    unfinished.rename(path)  # whole or not at all


def _run_node() -> int:
    from skerry.node.daemon import run

    supervisor.become_child()
    supervisor.keep_freed_memory()
    config = load()
    trouble = instance.trouble_file(config)
    try:
        return run(config)
    except SkerryError as error:
        # For `up`, which waits: a node that cannot work here says why, and is tried again all the same.
        trouble.write_text(error.message)
        sys.stderr.write(f"node: {error.message}\n")
        return 1


def _run_api() -> int:
    config = load()
    logs.configure(config.log_level)
    user = _user(config)
    listener = socket.socket(fileno=int(os.environ[LISTEN_FD]))
    key_hash = hash_secret(instance.key(config))
    supervisor.drop_privileges(user.pw_uid, user.pw_gid)
    supervisor.become_child()
    supervisor.keep_freed_memory()
    os.environ["HOME"] = str(config.home / "api")

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_api(config, listener, key_hash))
    return 0


async def _api(config: Config, listener: socket.socket, key_hash: bytes) -> None:
    import uvicorn

    from skerry.api.app import create_app
    from skerry.api.http import HttpProtocol
    from skerry.clock import SystemClock
    from skerry.control.accounts import bootstrap
    from skerry.control.deps import Deps
    from skerry.providers.local import LocalProvider
    from skerry.store import open_store

    store = await open_store(config.database_url)
    provider = LocalProvider(config.node_socket)
    try:
        deps = Deps(store, provider, SystemClock(), config)
        await bootstrap(deps, key_hash)
        settings = uvicorn.Config(
            create_app(deps),
            http=HttpProtocol,
            ws="websockets-sansio",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # nothing here goes by a client's address or scheme
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=5,
        )
        await uvicorn.Server(settings).serve(sockets=[listener])
    finally:
        await provider.close()
        await store.close()


def leave_sandboxes(config: Config, *, end: bool) -> int:
    """Before the server ends: how many sandboxes go on without it. With `end` none does; their files are kept.

    Raises:
        Unavailable: The node does not answer.
    """
    from skerry.providers.local import LocalProvider

    async def ask() -> int:
        provider = LocalProvider(config.node_socket)
        try:
            if end:
                await provider.shutdown(stop_sandboxes=True)
                return 0
            return sum(seen.running for seen in await provider.list())
        finally:
            await provider.close()

    return asyncio.run(ask())


async def probes(config: Config) -> list[Probe]:
    """What this host can and cannot do, tried directly: for `doctor`, before anything runs. Root only."""
    from skerry.node.network import Network
    from skerry.node.runtimes import RUNTIMES

    find_programs()
    found = [_sbxd_probe(config), *(_program_probe(name, package) for name, package in _PROGRAMS.items())]
    for name, make in RUNTIMES.items():
        required = name == config.runtime
        probe = (
            await make(config).probe()
            if shutil.which(name)
            else Probe(name, False, f"{name} is not installed", f"apt-get install {name}")
        )
        found.append(replace(probe, required=required))
    found += await _pool_probes(config)
    found += await Network(config).probes()
    return found


async def _pool_probes(config: Config) -> Sequence[Probe]:
    """Of a small pool made where the real one lies or would lie, and taken away: a running server is not touched."""
    from skerry.node.layers import Layers

    config.home.mkdir(mode=0o711, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="doctor-", dir=config.home) as scratch:
        layers = Layers(config.model_copy(update={"home": Path(scratch), "pool_mb": 1024}))
        try:
            await layers.open()
            return await layers.probes()
        except SkerryError as error:
            return [Probe("pool", False, error.message)]
        finally:
            await layers.close()


_PROGRAMS = {"ip": "iproute2", "nft": "nftables", "mkfs.btrfs": "btrfs-progs", "mmdebstrap": "mmdebstrap"}


def _program_probe(name: str, package: str) -> Probe:
    path = shutil.which(name)
    return Probe(name, path is not None, path or f"{name} is not installed", f"apt-get install {package}")


def _sbxd_probe(config: Config) -> Probe:
    there = os.access(config.sbxd, os.X_OK)
    detail = str(config.sbxd) if there else f"{config.sbxd} does not exist or cannot be executed"
    return Probe("sbxd", there, detail, "`./skerry up` builds it; by hand: make -C sbxd, and copy it there")


def main(argv: Sequence[str]) -> int:
    """The entry of a child process: `python -m skerry.serve node|api`."""
    return {"node": _run_node, "api": _run_api}[argv[1]]()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
