"""The published client `flaxcloud`, unmodified, against a real server."""

import subprocess
import sys
from collections.abc import Iterator

import flaxcloud
import pytest
from acceptance.servers import Server


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


async def test_the_published_asynchronous_client_works(server: Server) -> None:
    async with flaxcloud.AsyncFlaxClient(server.key, base_url=server.url) as client:
        box = await client.create_sandbox("python")
        try:
            assert (await box.run("echo async")).stdout == "async\n"
        finally:
            await box.destroy()
