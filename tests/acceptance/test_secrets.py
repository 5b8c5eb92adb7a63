"""Where the values of environments lie on the host of a real server: nowhere in clear."""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx2
from acceptance.marks import on_both
from acceptance.servers import Server

from skerry import Sandbox

CREATED, REPLACED, COMMANDS = (f"hunter2-{name}-no-good-password" for name in ("created", "replaced", "commands"))


def files(home: Path) -> Iterator[Path]:
    """Everything the instance has on the disk, but for the files inside the sandboxes and templates."""
    disk = home.stat().st_dev  # mounts are others' files: sandboxes', or namespaces
    for directory, below, names in os.walk(home):
        below[:] = [name for name in below if Path(directory, name).lstat().st_dev == disk]
        for path in (Path(directory, name) for name in names):
            if path.is_file() and path.stat().st_dev == disk and path.suffix != ".img":
                yield path


def arguments() -> Iterator[bytes]:
    """The command lines of all processes of the host."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield entry.read_bytes()
        except OSError:
            continue


@on_both
def test_no_value_of_an_environment_lies_on_the_host_in_clear(server: Server) -> None:
    headers = {"Authorization": f"Bearer {server.key}"}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=60) as http:
        body = {"template": "python", "env": {"SECRET": CREATED}}
        sandbox = http.post("/v1/sandboxes", json=body, headers={"Idempotency-Key": os.urandom(8).hex()}).json()
        path = f"/v1/sandboxes/{sandbox['id']}"
        with_env = {"command": "echo $SECRET$MINE | wc -c; sleep 60", "env": {"MINE": COMMANDS}, "async": True}
        running = http.post(f"{path}/commands", json=with_env).json()["id"]
        refused = http.post(f"{path}/commands", json={"argv": ["no-such"], "env": {"MINE": COMMANDS}}).json()
        assert (refused["status"], refused["reason"]) == ("failed", "not_started")
        assert http.put(f"{path}/env", json={"env": {"SECRET": REPLACED}}).json()["env"] == {"SECRET": REPLACED}
        shown = http.post(f"{path}/commands", json={"command": 'test "$SECRET" = ' + REPLACED[::-1]}).json()
        assert shown["exit_code"] == 1
        listed = http.get("/v1/sandboxes").text
        values = [value.encode() for value in (CREATED, REPLACED, COMMANDS)]
        seen = [path for path in files(server.config.home) if any(value in path.read_bytes() for value in values)]
        looked_at = {path.name for path in files(server.config.home)}
        told = [line for line in arguments() if any(value in line for value in values)]
        http.post(f"/v1/commands/{running}/kill", json={})
        http.delete(path)
    assert seen == []
    assert told == []
    assert not any(value.decode() in listed for value in values)
    assert {"skerry.db", "skerry.db-wal", "serve.log", f"{sandbox['id']}.jsonl", "config.json"} <= looked_at
    keys = server.config.secrets_file.stat()
    assert (keys.st_mode & 0o777, keys.st_uid) == (0o600, server.config.home.joinpath("api").stat().st_uid)


def test_commands_find_the_environment_as_it_is_now(server: Server, sandbox: Sandbox) -> None:
    with httpx2.Client(base_url=server.url, headers={"Authorization": f"Bearer {server.key}"}) as http:
        for value in ("one", "two"):
            http.put(f"/v1/sandboxes/{sandbox.id}/env", json={"env": {"VALUE": value}})
            assert sandbox.commands.run("echo $VALUE").stdout == f"{value}\n"
