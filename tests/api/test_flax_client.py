"""The published client `flaxcloud` 0.6.0, unmodified, against the real HTTP server."""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from flaxcloud import FlaxClient
from flaxcloud.aio import AsyncFlaxClient
from flaxcloud.errors import FlaxAuthError, FlaxBadRequestError, FlaxConflictError, FlaxError, FlaxNotFoundError

from .conftest import Server


def test_a_sandbox_is_made_used_and_destroyed(flax: FlaxClient) -> None:
    with flax.create_sandbox(template="python", name="one", metadata={"a": 1}, model={"m": [1]}) as sandbox:
        assert sandbox.id.startswith("sbx_")
        assert (sandbox.status, sandbox.template, sandbox.name) == ("ready", "python", "one")
        assert (sandbox.model, sandbox.data["metadata"]) == ({"m": [1]}, {"a": 1})
        assert sandbox.run("echo hi").stdout == "hi\n"
    assert flax.get_sandbox(sandbox.id).status == "destroyed"


def test_f2_limits_template_and_network_mode_are_reported(flax: FlaxClient) -> None:
    data = flax.create_sandbox(memory_mb=256, timeout_seconds=7, network_mode="none", env={"A": "b"}).data
    assert (data["memory_mb"], data["timeout_seconds"], data["network_mode"]) == (256, 7, "none")
    assert (data["template"], data["env"], data["runtime"]) == ("blank", {"A": "b"}, "fake")
    assert flax.create_sandbox().data["memory_mb"] == 512


def test_f32_a_command_that_fails_is_completed_with_its_code(flax: FlaxClient) -> None:
    command = flax.create_sandbox().run("echo out; echo err >&2; exit 5")
    assert (command.status, command.exit_code, command.ok) == ("completed", 5, False)
    assert (command.stdout, command.stderr) == ("out\n", "err\n")


def test_f32_a_background_command_is_looked_up_and_waited_for(flax: FlaxClient) -> None:
    sandbox = flax.create_sandbox()
    command = sandbox.run("echo begun; sleep 0.3; echo done", background=True)
    assert command.status == "running"
    assert sandbox.refresh().status == "active"
    deadline = time.monotonic() + 10
    while sandbox.get_command(command.id).stdout != "begun\n":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    ended = sandbox.wait(command, interval=0.05, timeout=10)
    assert (ended.status, ended.stdout) == ("completed", "begun\ndone\n")
    assert sandbox.refresh().status == "ready"


def test_f32_a_streamed_command_gives_chunks_and_its_exit_code(flax: FlaxClient) -> None:
    stream = flax.create_sandbox().run_stream("echo one; sleep 0.05; echo two >&2; exit 3")
    assert stream.read() == "one\ntwo\n"
    assert stream.exit_code == 3


def test_a_character_split_over_chunks_arrives_whole(flax: FlaxClient) -> None:
    stream = flax.create_sandbox().run_stream(r"printf '\xe2\x9c'; sleep 0.05; printf '\x93!'")
    assert stream.read() == "✓!"


def test_f25_a_streamed_command_that_runs_into_its_deadline_says_so(flax: FlaxClient) -> None:
    stream = flax.create_sandbox().run_stream("echo partial; sleep 60", timeout=1)
    seen: list[str] = []
    with pytest.raises(FlaxError, match="deadline of 1 s"):
        seen.extend(stream)
    assert stream.exit_code is None


def test_f25_a_command_that_runs_into_its_deadline_keeps_its_output(flax: FlaxClient) -> None:
    command = flax.create_sandbox().run("echo partial; sleep 60", timeout=1)
    assert (command.status, command.stdout, command.exit_code) == ("timeout", "partial\n", None)


def test_f3_the_home_is_the_workspace_and_a_commands_env_lies_over_the_sandboxes(flax: FlaxClient) -> None:
    sandbox = flax.create_sandbox(env={"A": "sandbox", "B": "sandbox"})
    shown = sandbox.run("pwd; env", env={"B": "command"}).stdout.splitlines()
    assert shown[0] == "/workspace"
    assert {"HOME=/workspace", "XDG_CONFIG_HOME=/workspace/.config", "LANG=C.UTF-8", "A=sandbox", "B=command"} <= {
        *shown
    }


def test_files_are_written_read_listed_and_deleted(flax: FlaxClient) -> None:
    sandbox = flax.create_sandbox()
    content = bytes(range(256)) * 5000
    sandbox.upload("/workspace/dir/ä ✓.bin", content)
    assert sandbox.download("dir/ä ✓.bin") == content
    (entry,) = sandbox.list_files("/workspace/dir")
    assert (entry.name, entry.type, entry.size_bytes) == ("ä ✓.bin", "file", len(content))
    assert [e.is_dir for e in sandbox.list_files()] == [True]
    sandbox.delete_file("/workspace/dir/ä ✓.bin")
    with pytest.raises(FlaxNotFoundError):
        sandbox.download("/workspace/dir/ä ✓.bin")


def test_lists_show_what_is_not_destroyed(flax: FlaxClient) -> None:
    first, second, third = (flax.create_sandbox() for _ in range(3))
    second.destroy()
    assert [sandbox.id for sandbox in flax.list_sandboxes()] == [third.id, first.id]


def test_f11_destroy_works_twice_and_a_destroyed_sandbox_runs_nothing(flax: FlaxClient) -> None:
    sandbox = flax.create_sandbox()
    sandbox.destroy()
    sandbox.destroy()
    with pytest.raises(FlaxConflictError) as refused:
        sandbox.run("true")
    assert refused.value.code == "sandbox_destroyed"


def test_f32_a_command_is_looked_up_after_its_sandbox_is_gone(flax: FlaxClient) -> None:
    sandbox = flax.create_sandbox()
    command = sandbox.run("echo kept")
    sandbox.destroy()
    assert sandbox.get_command(command.id).stdout == "kept\n"


def test_f1_another_accounts_sandbox_is_not_found(flax: FlaxClient) -> None:
    with pytest.raises(FlaxNotFoundError):
        flax.get_sandbox("sbx_00000000000000000000")


def test_a_wrong_key_is_an_authentication_error(server: Server) -> None:
    with FlaxClient(api_key="wrong", base_url=server.url) as client, pytest.raises(FlaxAuthError):
        client.me()


def test_f4_an_unknown_template_is_a_bad_request_that_lists_the_known_ones(flax: FlaxClient) -> None:
    with pytest.raises(FlaxBadRequestError, match="python") as refused:
        flax.create_sandbox(template="nope")
    assert refused.value.code == "unknown_template"
    assert flax.list_sandboxes() == []


@pytest.mark.parametrize("option", [{"capabilities": ["browser"]}])
def test_x4_what_is_not_supported_yet_is_refused_by_name(flax: FlaxClient, option: dict[str, object]) -> None:
    with pytest.raises(FlaxBadRequestError, match=next(iter(option))):
        flax.create_sandbox(**option)


def test_x8_the_first_account_has_a_plan_without_limits(flax: FlaxClient) -> None:
    me = flax.me()
    assert me["plan"] == "unlimited"
    assert me["id"].startswith("acct_")


def test_keys_are_made_used_listed_and_ended(server: Server, flax: FlaxClient) -> None:
    made = flax.create_api_key("ci")
    with FlaxClient(api_key=made["key"], base_url=server.url) as other:
        assert other.me() == flax.me()
        assert [key["name"] for key in flax.list_api_keys()] == ["test", "ci"]
        assert made["key"] not in str(flax.list_api_keys())
        flax.delete_api_key(made["id"])
        with pytest.raises(FlaxAuthError):
            other.me()
    with pytest.raises(FlaxNotFoundError):
        flax.delete_api_key(made["id"])


def test_use_is_told(flax: FlaxClient) -> None:
    sandbox = flax.create_sandbox(memory_mb=256)
    usage = flax.usage()
    assert (usage["plan"], usage["sandboxes"]["ready"], usage["memory_mb"]) == ("unlimited", 1, 256)
    assert usage["limits"]["sandboxes"] is None
    sandbox.destroy()


def test_f3_the_environment_is_replaced(flax: FlaxClient) -> None:
    sandbox = flax.create_sandbox(env={"A": "1"})
    assert sandbox.set_env({"B": "2"}).env == {"B": "2"}
    assert flax.get_sandbox(sandbox.id).env == {"B": "2"}
    shown = sandbox.run("env").stdout.splitlines()
    assert "B=2" in shown and "A=1" not in shown


def test_whoami_of_the_clients_command_line(server: Server) -> None:
    env = {**os.environ, "FLAX_API_KEY": server.key, "FLAX_BASE_URL": server.url}
    shown = subprocess.run([sys.executable, "-m", "flaxcloud.cli", "whoami"], env=env, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "plan=unlimited" in shown.stdout and "id=acct_" in shown.stdout


def test_templates_are_listed(flax: FlaxClient) -> None:
    assert {"python", "node", "blank"} <= {template.name for template in flax.list_templates()}
    assert flax.get_template("python").ready
    assert list(flax.build_logs("python")) == ["Template 'python' is ready.\n"]


async def test_the_async_client_works_too(server: Server) -> None:
    async with AsyncFlaxClient(api_key=server.key, base_url=server.url) as client:
        sandbox = await client.create_sandbox(template="node")
        assert (await sandbox.run("echo hi")).stdout == "hi\n"
        stream = sandbox.run_stream("echo streamed")
        assert [chunk async for chunk in stream] == ["streamed\n"]
        await sandbox.upload("a.txt", "text")
        assert await sandbox.read_text("a.txt") == "text"
        session = await sandbox.create_session()
        await session.run("export A=1")
        assert (await session.run("echo $A")).stdout == "1\n"
        assert [each.id for each in await sandbox.sessions()] == [session.id]
        assert (await sandbox.set_startup("echo up")).command == "echo up"
        await sandbox.run_startup()
        assert (await sandbox.git.clone("https://host/a", token="t")).command == "git clone https://host/a"
        await sandbox.destroy()
        assert [s.id for s in await client.list_sandboxes()] == []


def test_sessions_keep_directory_and_variables(flax: FlaxClient) -> None:
    sandbox = flax.create_sandbox(env={"BASE": "b"})
    sandbox.upload("dir/file", "here\n")
    with sandbox.create_session() as session:
        assert session.id.startswith("ses_")
        assert (session.sandbox_id, session.cwd) == (sandbox.id, "/workspace")
        assert session.run("cd dir; export A=1; unset BASE; exit 3").exit_code == 3
        result = session.run("pwd; cat file; echo $A,$BASE")
        assert (result.session_id, result.cwd, result.stdout) == (
            session.id,
            "/workspace/dir",
            "/workspace/dir\nhere\n1,\n",
        )
        assert [(each.id, each.cwd) for each in sandbox.sessions()] == [(session.id, "/workspace/dir")]
    assert sandbox.sessions() == []
    with pytest.raises(FlaxNotFoundError):
        session.run("true")


def test_a_session_goes_on_after_a_deadline(flax: FlaxClient) -> None:
    session = flax.create_sandbox().create_session()
    session.run("export A=1")
    late = session.run("export A=2; echo begun; sleep 60", timeout=1)
    assert (late.exit_code, late.stdout, late.ok) == (124, "begun\n", False)
    assert session.run("echo $A").stdout == "1\n"


def test_a_sandboxes_sessions_end_with_it(flax: FlaxClient) -> None:
    sandbox = flax.create_sandbox()
    session = sandbox.create_session()
    sandbox.destroy()
    with pytest.raises(FlaxNotFoundError):
        session.run("true")
    assert sandbox.sessions() == []


def test_f14_a_startup_command_runs_and_is_no_activity(flax: FlaxClient) -> None:
    sandbox = flax.create_sandbox(startup_command="echo up; sleep 60")
    assert sandbox.startup_command == "echo up; sleep 60"
    _eventually(lambda: sandbox.startup().logs == "up\n")
    startup = sandbox.startup()
    assert (startup.configured, startup.source, startup.status) == (True, "command", "running")
    assert sandbox.refresh().status == "ready"
    assert sandbox.set_startup("exit 3").status == "running"
    sandbox.run_startup()
    _eventually(lambda: sandbox.startup().status == "failed")


def test_f16_f17_a_startup_file_counts_where_no_command_is_set(flax: FlaxClient) -> None:
    sandbox = flax.create_sandbox()
    empty = sandbox.startup()
    assert (empty.configured, empty.command, empty.source, empty.status, empty.ran_at, empty.logs) == (
        *(False, None, None, None, None, ""),
    )
    sandbox.upload("flax.startup", "# comment\n\necho file\necho two\n")
    assert (sandbox.startup().source, sandbox.startup().effective_command) == ("file", "echo file")
    assert (sandbox.set_startup("echo set").source, sandbox.refresh().startup_command) == ("command", "echo set")
    assert (sandbox.set_startup("").source, sandbox.refresh().startup_command) == ("file", None)
    sandbox.run_startup()
    _eventually(lambda: sandbox.startup().logs == "file\n")


def test_git_takes_a_token_that_is_not_in_the_record(server: Server, flax: FlaxClient) -> None:
    sandbox = flax.create_sandbox()
    cloned = sandbox.git.clone("https://host/a.git", "to", branch="main", depth=1, token="s3cret")
    assert cloned.stdout.startswith("auth url https://host: git clone ")
    assert cloned.stdout.endswith("--branch main --depth 1 -- https://host/a.git /workspace/to\n3 lines\n")
    assert cloned.command == "git clone --branch main --depth 1 https://host/a.git /workspace/to"
    assert (cloned.timeout_seconds, cloned.working_directory) == (300, "/workspace")
    pulled = sandbox.git.pull(token="s3cret", username="me", timeout=9)
    assert (pulled.command, pulled.timeout_seconds) == ("git pull", 9)
    pushed = sandbox.git.push(branch="b", set_upstream=True, token="s3cret")
    assert pushed.command == "git push --set-upstream origin b"
    assert sandbox.git.push(set_upstream=True).command == "git push --set-upstream origin HEAD"
    assert "s3cret" not in str(server.call(server.deps.store.list_commands()))
    specs = [command.spec for command in server.provider.sandboxes[sandbox.id].guest._commands.values()]  # pyright: ignore
    assert len(specs) == 4
    assert "s3cret" not in str([(spec.argv, dict(spec.env), spec.shell) for spec in specs])


def test_f8_f12_a_sandbox_is_stopped_resumed_and_resumed_by_its_use(flax: FlaxClient) -> None:
    sandbox = flax.create_sandbox(template="python", env={"A": "1"}, startup_command="echo up")
    sandbox.upload("note.txt", "kept")
    assert sandbox.stop().status == "stopped"
    assert [each.status for each in flax.list_sandboxes()] == ["stopped"]
    assert sandbox.resume().status == "ready"
    assert sandbox.read_text("note.txt") == "kept"
    assert sandbox.stop().status == "stopped"
    assert sandbox.run("echo $A").stdout == "1\n"
    assert sandbox.refresh().status == "ready"
    assert sandbox.stop().status == "stopped"
    assert sandbox.read_text("note.txt") == "kept"
    _eventually(lambda: sandbox.startup().logs == "up\n")
    sandbox.run("sleep 60", background=True)
    with pytest.raises(FlaxConflictError) as refused:
        sandbox.stop()
    assert refused.value.code == "sandbox_busy"


def test_f23_a_sandbox_is_restored_from_another(flax: FlaxClient) -> None:
    first = flax.create_sandbox()
    first.upload("note.txt", "kept")
    first.stop()
    assert flax.create_sandbox(restore_from=first.id).read_text("note.txt") == "kept"
    snapshot = first.create_snapshot("both")
    with pytest.raises(FlaxBadRequestError):
        flax.create_sandbox(restore_from=first.id, snapshot_id=snapshot.id)


def test_f26_snapshots_are_made_found_begun_from_and_deleted(flax: FlaxClient) -> None:
    source = flax.create_sandbox(template="node", memory_mb=256, env={"A": "1"}, startup_command="true")
    source.upload("note.txt", "kept")
    snapshot = source.create_snapshot("base")
    unnamed = source.create_snapshot()
    assert snapshot.id.startswith("snap_")
    assert (snapshot.name, snapshot.source_sandbox_id, snapshot.template) == ("base", source.id, "node")
    assert (snapshot.memory_mb, snapshot.env, snapshot.startup_command) == (256, {"A": "1"}, "true")
    assert (unnamed.name, unnamed.size_bytes + snapshot.size_bytes >= 0) == ("", True)
    source.destroy()
    assert [each.id for each in flax.list_snapshots()] == [unnamed.id, snapshot.id]
    # The client sends `blank` where no template is given.
    copy = flax.create_sandbox(snapshot_id=snapshot.id)
    assert (copy.template, copy.data["memory_mb"], copy.env) == ("node", 256, {"A": "1"})
    assert copy.read_text("note.txt") == "kept"
    assert flax.get_snapshot(snapshot.id).name == "base"
    flax.delete_snapshot(snapshot.id)
    with pytest.raises(FlaxNotFoundError):
        flax.get_snapshot(snapshot.id)


def test_f27_a_fork_is_a_sandbox_of_its_own(flax: FlaxClient) -> None:
    source = flax.create_sandbox(env={"A": "1"}, metadata={"of": "source"})
    source.upload("note.txt", "theirs")
    running = source.run("echo begun; sleep 60", background=True)
    copy = source.fork(metadata={"branch": 1})
    assert copy.id != source.id
    assert (copy.status, copy.env, copy.data["metadata"]) == ("ready", {"A": "1"}, {"branch": 1})
    copy.upload("note.txt", "mine")
    assert source.read_text("note.txt") == "theirs"
    assert source.get_command(running.id).status == "running"
    assert source.fork().read_text("note.txt") == "theirs"


def test_the_clients_command_line_stops_resumes_and_keeps_snapshots(server: Server, flax: FlaxClient) -> None:
    def cli(*words: str) -> str:
        env = {**os.environ, "FLAX_API_KEY": server.key, "FLAX_BASE_URL": server.url}
        done = subprocess.run([sys.executable, "-m", "flaxcloud.cli", *words], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    box = cli("sandbox", "create", "-q").strip()
    assert cli("sandbox", "stop", box) == f"{box} -> stopped\n"
    assert "stopped" in cli("sandbox", "ls")
    assert cli("sandbox", "resume", box) == f"{box} -> ready\n"
    snapshot = cli("snapshot", "create", box, "base", "-q").strip()
    unnamed = cli("snapshot", "create", box).strip()
    shown = cli("snapshot", "ls")
    assert snapshot in shown and "base" in shown and unnamed in shown and "None" not in shown
    assert cli("snapshot", "rm", snapshot, unnamed) == f"deleted {snapshot}\ndeleted {unnamed}\n"


async def test_the_async_client_stops_resumes_forks_and_keeps_snapshots(server: Server) -> None:
    async with AsyncFlaxClient(api_key=server.key, base_url=server.url) as client:
        sandbox = await client.create_sandbox()
        await sandbox.upload("note.txt", "kept")
        assert (await sandbox.stop()).status == "stopped"
        assert (await sandbox.resume()).status == "ready"
        snapshot = await sandbox.create_snapshot("base")
        assert [each.id for each in await client.list_snapshots()] == [snapshot.id]
        assert (await client.get_snapshot(snapshot.id)).name == "base"
        copies = [await sandbox.fork(), await client.create_sandbox(snapshot_id=snapshot.id)]
        copies.append(await client.create_sandbox(restore_from=sandbox.id))
        assert [await each.read_text("note.txt") for each in copies] == ["kept"] * 3
        await client.delete_snapshot(snapshot.id)
        assert await client.list_snapshots() == []


def _eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
