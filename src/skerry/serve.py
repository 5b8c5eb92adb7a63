"""The composition root: the only module that knows the deciding and the doing wing, and puts them together.

`serve` (root) keeps two processes alive: the node (root) and the API, which gives its privileges up. The listening
socket is the supervisor's and is inherited, so that a restart of the API refuses nobody and keeps its port.
"""

import asyncio
import errno
import fcntl
import json
import os
import pwd
import resource
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from skerry import chores, instance, logs, supervisor
from skerry.config import Config, inherited
from skerry.model.account import hash_secret, hint_of, new_secret
from skerry.model.errors import Conflict, Refused, SkerryError

LISTEN_FD = "SKERRY_LISTEN_FD"
KEEP_ALIVE_S = 75  # longer than our client keeps an idle connection, so that it never writes into a closing one
BACKLOG = 2048


def serve(config: Config) -> int:
    """Run the server in the foreground until SIGTERM. Root only.

    Raises:
        Refused: Not root, or `check` refuses.
        Conflict: The instance runs already, or the port is taken.
    """
    if os.geteuid() != 0:
        raise Refused("The server makes sandboxes, mounts and networks: run it as root (sudo skerry serve).")
    logs.configure(config.log_level, config.log_format)
    check(config)
    prepare(config)
    lock = _lock(config)
    try:
        _forget(config)
        _make_key(config)
        instance.key(config)
        listener = _listen(config)
        _publish(config, listener)
        _supervise(config, listener)
    finally:
        _forget(config)
        os.close(lock)
    return 0


def _supervise(config: Config, listener: socket.socket) -> None:
    manager = chores.ServiceManager()
    env = {**os.environ, **environment(config), "SKERRY_SUPERVISOR": str(os.getpid())}
    child = [sys.executable, "-m", "skerry.serve"]
    handed = {**env, LISTEN_FD: str(listener.fileno())}
    try:
        supervisor.supervise(
            [
                supervisor.Child("node", [*child, "node"], env),
                supervisor.Child("api", [*child, "api"], handed, [listener.fileno()]),
            ],
            chores.chores(config, manager),
        )
    finally:
        manager.tell("STOPPING=1")


def _forget(config: Config) -> None:
    """Take away what a server says of itself while it runs: this one, that ends, or one before, that was killed."""
    for file in (instance.published_file(config), instance.url_file(config)):
        file.unlink(missing_ok=True)
    for part in instance.PARTS:
        instance.trouble_file(config, part).unlink(missing_ok=True)


def check(config: Config) -> None:
    """What can be told of a start before anything is ended or made. Root only; changes nothing.

    Raises:
        Refused: There is no such user, the API's files are another's, the runtime is not permitted, or sandboxes run
            on another one.
    """
    from skerry.node import runtimes

    user = _user(config)
    _require_own_files(config, user)
    runtimes.check(config)


def environment(config: Config) -> dict[str, str]:
    """The settings as the environment that gives exactly them again."""
    return {f"SKERRY_{name.upper()}": str(value) for name, value in config.model_dump().items()}


def prepare(config: Config) -> None:
    """Make the directories of the instance, with their owners. Safe to call twice.

    Raises:
        Refused: There is no such user, or the directories cannot be made.
    """
    user = _user(config)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # 0711: the API's user passes through to its own directory and to the node's socket, and root of a user namespace
    # to its sandbox's files; neither lists anything.
    api = api_dir(config)
    try:
        for directory in (config.home, config.run_dir, config.node_dir):
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o711)
        api.mkdir(exist_ok=True)
        api.chmod(0o700)
        os.chown(api, user.pw_uid, user.pw_gid)
    except OSError as error:
        raise Refused(f"{config.home} cannot be used: {error}. Mend that, or point SKERRY_HOME elsewhere.") from error


def api_dir(config: Config) -> Path:
    """The API's own state: the database. Its user's alone."""
    return config.home / "api"


def _user(config: Config) -> pwd.struct_passwd:
    try:
        user = pwd.getpwnam(config.user)
    except (KeyError, ValueError):
        raise Refused(
            f"There is no user '{config.user}' for the API to run as. `./skerry up` makes it, or: "
            f"useradd --system --no-create-home --shell /usr/sbin/nologin {config.user}"
        ) from None
    if user.pw_uid == 0:
        raise Refused(f"The API never runs as root, and '{config.user}' is root. Set `user` to a user of its own.")
    return user


def _require_own_files(config: Config, user: pwd.struct_passwd) -> None:
    """Never handed over by us: what an unprivileged user had for itself may hold links to what is another's."""
    home = api_dir(config)
    try:
        names = [entry.name for entry in os.scandir(home)]
    except FileNotFoundError:
        return
    except OSError as error:
        raise Refused(f"{home} cannot be used: {error}. Mend that, or point SKERRY_HOME elsewhere.") from error
    owners = {entry.lstat().st_uid for entry in ([home] if names else []) + [home / name for name in names]}
    for owner in owners - {user.pw_uid}:
        try:
            name = pwd.getpwuid(owner).pw_name
        except KeyError:
            name = str(owner)
        raise Refused(
            f"The API is to run as '{config.user}' (setting `user`), but its files in {home} belong to '{name}', as "
            f"whom it ran before. Go back to that user, or hand them over: chown -hR {config.user}: {home}"
        )


def _lock(config: Config) -> int:
    """Hold the pid file, as `instance.running_pid` asks for it. It is let go when this process ends, however it does.

    A record lock: the kernel tells whoever asks which process holds it. Nothing else here may open the file, since
    closing it would let go too.
    """
    handle = os.open(instance.pid_file(config), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # what servers before 0.1 held
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        pid = os.pread(handle, 32, 0).decode(errors="replace").strip()
        os.close(handle)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise Conflict(f"The server of {config.home} runs already, as process {pid}. `skerry down` ends it.") from None
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    return handle


def _listen(config: Config) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except (OSError, ValueError) as error:
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        what = "End what holds it, or give another --port." if in_use else "Give an address of this machine (--host)."
        why = error.strerror if isinstance(error, OSError) else error
        raise Conflict(f"Cannot listen on {config.host} port {config.port}: {why}. {what}") from error
    listener.listen(BACKLOG)
    return listener


def _publish(config: Config, listener: socket.socket) -> None:
    """Say where this server is and with which settings it runs; the address last, since clients wait for that."""
    host, port = str(listener.getsockname()[0]), listener.getsockname()[1]
    # Whoever listens everywhere is reached on the loopback.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{port}"
    running = instance.Running(os.getpid(), url, instance.installed_revision(config), config.model_dump(mode="json"))
    _write(instance.published_file(config), json.dumps(asdict(running)) + "\n", 0o600)
    _write(instance.url_file(config), url + "\n", 0o644)


def _make_key(config: Config) -> None:
    path = instance.key_file(config)
    if not path.exists():
        _write(path, new_secret() + "\n", 0o600)


def _write(path: Path, text: str, mode: int) -> None:
    """A file that is there whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "w") as file:
        os.fchmod(handle, mode)
        file.write(text)
    fresh.replace(path)


def _run_node() -> int:
    from skerry.node.daemon import run

    supervisor.become_child()
    supervisor.keep_freed_memory()
    config = inherited()
    return _telling_trouble(config, "node", lambda: run(config))


def _run_api() -> int:
    config = inherited()
    logs.configure(config.log_level, config.log_format)
    return _telling_trouble(config, "api", lambda: _answer(config))


def _telling_trouble(config: Config, part: str, work: Callable[[], int]) -> int:
    """For `up`, which waits: a part that cannot work here says why, and is tried again all the same."""
    # Opened, and emptied, before the API gives up the right to.
    with instance.trouble_file(config, part).open("w") as trouble:
        try:
            return work()
        except SkerryError as error:
            trouble.write(error.message)
            sys.stderr.write(f"{part}: {error.message}\n")
            return 1


def _answer(config: Config) -> int:
    user = _user(config)
    listener = socket.socket(fileno=int(os.environ[LISTEN_FD]))
    key = instance.key(config)
    known_by = (hash_secret(key), hint_of(key))
    supervisor.drop_privileges(user.pw_uid, user.pw_gid)
    supervisor.become_child()
    supervisor.keep_freed_memory()
    os.environ["HOME"] = str(api_dir(config))

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_api(config, listener, known_by))
    return 0


async def _api(config: Config, listener: socket.socket, first_key: tuple[bytes, str]) -> None:
    import uvicorn

    from skerry.api.app import create_app
    from skerry.api.http import HttpProtocol
    from skerry.api.websocket import MESSAGE_BYTES, PING_EVERY_S, PONG_WITHIN_S, WebSocketProtocol
    from skerry.clock import SystemClock
    from skerry.control.accounts import bootstrap
    from skerry.control.deps import Deps
    from skerry.providers.local import LocalProvider
    from skerry.store import open_store

    store = await open_store(config.database_url, secrets_file=config.secrets_file)
    provider = LocalProvider(config.node_socket)
    try:
        deps = Deps(store, provider, SystemClock(), config)
        await bootstrap(deps, *first_key)
        settings = uvicorn.Config(
            create_app(deps),
            http=HttpProtocol,
            ws=WebSocketProtocol,
            ws_max_size=MESSAGE_BYTES,
            ws_ping_interval=PING_EVERY_S,
            ws_ping_timeout=PONG_WITHIN_S,
            ws_per_message_deflate=False,
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


def main(argv: Sequence[str]) -> int:
    """The entry of a child process: `python -m skerry.serve node|api`."""
    return {"node": _run_node, "api": _run_api}[argv[1]]()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
