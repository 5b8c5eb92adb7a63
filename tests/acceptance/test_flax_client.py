"""The published client `flaxcloud`, unmodified, against a real server."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import flaxcloud
import pytest
from acceptance.servers import Server, eventually


@pytest.fixture
def flax(server: Server) -> Iterator[flaxcloud.FlaxClient]:
    with flaxcloud.FlaxClient(server.key, base_url=server.url) as client:
        yield client


def test_f32_the_published_client_runs_and_streams_commands(flax: flaxcloud.FlaxClient) -> None:
    with flax.create_sandbox("python") as box:
        command = box.run("echo out; echo err >&2; exit 3")
        assert (command.stdout, command.stderr, command.exit_code) == ("out\n", "err\n", 3)
        stream = box.run_stream("for i in 1 2 3; do echo $i; done")
        assert "".join(stream) == "1\n2\n3\n"
        assert stream.exit_code == 0
        background = box.run("sleep 0.2; echo later", background=True)
        assert box.wait(background, interval=0.1).stdout == "later\n"
        assert box.code_run("print(6 * 7)").stdout == "42\n"


def test_f3_the_published_client_replaces_the_environment(flax: flaxcloud.FlaxClient) -> None:
    with flax.create_sandbox("python", env={"A": "1"}) as box:
        assert box.set_env({"B": "2"}).env == {"B": "2"}
        assert box.run("echo $A$B").stdout == "2\n"


def test_the_published_client_sees_account_use_and_keys(flax: flaxcloud.FlaxClient, server: Server) -> None:
    assert flax.me()["plan"] == flax.usage()["plan"] == "unlimited"
    made = flax.create_api_key("ci")
    with flaxcloud.FlaxClient(made["key"], base_url=server.url) as other:
        assert other.me() == flax.me()
        assert made["id"] in [key["id"] for key in flax.list_api_keys()]
        flax.delete_api_key(made["id"])
        with pytest.raises(flaxcloud.FlaxAuthError):
            other.me()


def test_the_published_command_line_tells_who_it_is(server: Server) -> None:
    command = [sys.executable, "-m", "flaxcloud.cli", "whoami"]
    shown = subprocess.run(command, env=server.environ, capture_output=True, text=True, timeout=30)
    assert "plan=unlimited" in shown.stdout, shown.stderr


def test_the_published_client_moves_files(flax: flaxcloud.FlaxClient) -> None:
    with flax.create_sandbox("python") as box:
        box.upload("/workspace/data.bin", b"\x00\xff" * 1000)
        assert box.download("/workspace/data.bin") == b"\x00\xff" * 1000
        assert [entry.name for entry in box.list_files()] == ["data.bin"]
        box.delete_file("/workspace/data.bin")
        assert box.list_files() == []


def test_f1_the_published_client_meets_404_for_what_is_not_there(flax: flaxcloud.FlaxClient) -> None:
    with pytest.raises(flaxcloud.FlaxNotFoundError):
        flax.get_sandbox("sbx_" + "0" * 20)


def test_the_published_clients_helpers_for_files_work(flax: flaxcloud.FlaxClient, tmp_path: Path) -> None:
    with flax.create_sandbox("python", network_mode="none") as box:
        box.mkdir("/workspace/a/b")
        box.upload("/workspace/a/one.py", "1 + 1")
        (tmp_path / "local").write_bytes(b"\0local")
        box.upload_file(str(tmp_path / "local"), "/workspace/a/b/two")
        box.move("/workspace/a/one.py", "/workspace/a/b/three.py")
        assert (box.exists("/workspace/a/one.py"), box.exists("/workspace/a/b/three.py")) == (False, True)
        assert sorted(box.find()) == ["/workspace/a/b/three.py", "/workspace/a/b/two"]
        assert box.find("/workspace", name="*.py") == ["/workspace/a/b/three.py"]
        assert box.read_text("/workspace/a/b/three.py") == "1 + 1"
        box.download_file("/workspace/a/b/two", str(tmp_path / "back"))
        assert (tmp_path / "back").read_bytes() == b"\0local"


def test_the_published_clients_command_line_works(server: Server, flax: flaxcloud.FlaxClient, tmp_path: Path) -> None:
    def cli(*words: str, stdin: str = "", code: int = 0) -> str:
        program = [sys.executable, "-m", "flaxcloud.cli", *words]
        env = {**server.environ, "HOME": str(tmp_path), "GIT_TOKEN": "t0ken"}
        done = subprocess.run(program, input=stdin, capture_output=True, text=True, env=env, check=False, timeout=60)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout

    box = cli("sandbox", "create", "--template", "python", "--network", "none", "--startup", "echo up").strip()
    try:
        session = cli("session", "create", box).strip()
        assert cli("session", "exec", session, "cd /tmp; export A=1; exit 3", code=3) == ""
        assert cli("session", "exec", session, "pwd; echo $A") == "/tmp\n1\n"
        assert session in cli("session", "ls", box)
        cli("session", "rm", session)
        assert cli("session", "ls", box) == "No sessions.\n"
        eventually("it was started up", lambda: "status=stopped" in cli("startup", box))
        assert "set" in cli("startup", box, "--set", "echo again")
        assert "launched" in cli("startup", box, "--run")
        eventually("it ran again", lambda: "again" in flax.get_sandbox(box).startup().logs)
        flax.get_sandbox(box).run("git init -q --bare /srv/a.git && git clone -q /srv/a.git /workspace/w")
        cli("git", "clone", box, "/srv/a.git", "/workspace/b")
        assert cli("git", "status", box, "/workspace/b").startswith("## No commits yet")
        cli("git", "pull", box, "--path", "/workspace/b", code=1)
        cli("git", "clone", box, "http://127.0.0.1:1/a", "/workspace/c", "--token-env", "GIT_TOKEN", code=128)
        cli("git", "clone", box, "http://127.0.0.1:1/a", "/workspace/c", "--token-stdin", stdin="t0ken\n", code=128)
        assert cli("run", box, "echo run") == "run\n"
    finally:
        cli("sandbox", "rm", box)


async def test_the_published_asynchronous_client_works(server: Server) -> None:
    async with flaxcloud.AsyncFlaxClient(server.key, base_url=server.url) as client:
        box = await client.create_sandbox("python")
        try:
            assert (await box.run("echo async")).stdout == "async\n"
            assert (await box.code_run("print(6 * 7)")).stdout == "42\n"
            async with await box.create_session() as session:
                await session.run("cd /tmp && export A=1")
                result = await session.run("pwd; echo $A")
                assert (result.stdout, result.cwd) == ("/tmp\n1\n", "/tmp")
            await box.set_startup("echo up")
            assert (await box.run_startup()).configured
            assert (await box.git.clone("/nowhere")).exit_code == 128
        finally:
            await box.destroy()
