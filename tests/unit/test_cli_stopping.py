"""`stop`, `resume`, `fork` and `snapshot` on the command line, over a server that answers by a script."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from .pty_seat import seen_on_a_terminal
from .scripted_api import BOX, VIEW, ScriptedApi, refusal, scripted, view
from .test_sdk_stopping import FAILING, SNAPSHOT, STOPPING

PATH = f"/v1/sandboxes/{BOX}"
OTHER = "sbx_00000000000000000001"
OTHER_PATH = f"/v1/sandboxes/{OTHER}"
STOPPED = view(status="stopped")
SNAPSHOT_PATH = f"/v1/snapshots/{SNAPSHOT['id']}"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with scripted() as api:
        api.says("GET", PATH, view())
        api.says("GET", OTHER_PATH, view(id=OTHER))
        api.says("GET", "/v1/sandboxes", (200, {"data": [VIEW, VIEW | {"id": OTHER, "name": "other"}], "next": None}))
        api.says("GET", "/v1/snapshots", (200, {"data": [SNAPSHOT | {"name": "base"}], "next": None}))
        api.says("GET", f"/v1/snapshots/{SNAPSHOT['id']}", (200, SNAPSHOT | {"name": "base"}))
        yield api


def environment(api: ScriptedApi) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SKERRY_")}
    return {**kept, "SKERRY_URL": api.url, "SKERRY_API_KEY": "k"}


@pytest.fixture
def skerry(api: ScriptedApi) -> Run:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "skerry", *words]
        return subprocess.run(program, capture_output=True, text=True, env=environment(api))

    return run


def test_several_are_stopped_at_once_and_then_waited_for(api: ScriptedApi, skerry: Run) -> None:
    api.says("POST", f"{PATH}/stop", STOPPING)
    api.says("POST", f"{OTHER_PATH}/stop", view(id=OTHER, status="stopped"))
    api.says("GET", PATH, view(), STOPPING, STOPPED)
    done = skerry("stop", BOX, OTHER)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{BOX} stopped\n{OTHER} stopped\n", "")
    stops = [at for at, (_, path, _) in enumerate(api.asked) if path.endswith("/stop")]
    looks = [at for at, (method, path, _) in enumerate(api.asked) if (method, path) == ("GET", PATH)]
    assert max(stops) < looks[1], "the second stop began only when the first was over"


def test_one_line_each_and_the_exit_code_say_which_failed(api: ScriptedApi, skerry: Run) -> None:
    api.says("POST", f"{PATH}/stop", refusal(409, "sandbox_busy", "a command runs; --force"))
    api.says("POST", f"{OTHER_PATH}/stop", view(id=OTHER, status="stopped"))
    done = skerry("stop", BOX, "nothing", OTHER)
    assert (done.returncode, done.stdout) == (1, f"{OTHER} stopped\n")
    assert "a command runs; --force" in done.stderr and "'nothing'" in done.stderr
    done = skerry("stop", BOX, OTHER, "-o", "json")
    told = json.loads(done.stdout)
    assert (done.returncode, told[0]["sandbox"], told[0]["error"]["code"]) == (1, BOX, "sandbox_busy")
    assert (told[1]["id"], told[1]["status"]) == (OTHER, "stopped")


def test_a_store_that_fails_is_told_and_fails_the_command(api: ScriptedApi, skerry: Run) -> None:
    api.says("POST", f"{PATH}/stop", FAILING)
    api.says("GET", PATH, view(), FAILING)
    done = skerry("stop", BOX)
    assert (done.returncode, done.stdout) == (1, f"{BOX} stopping\n")
    assert "the bucket says no" in done.stderr


def test_no_wait_leaves_at_once_and_force_is_passed_on(api: ScriptedApi, skerry: Run) -> None:
    api.says("POST", f"{PATH}/stop", STOPPING)
    done = skerry("stop", "--force", "--no-wait", "box")
    assert (done.returncode, done.stdout) == (0, f"{BOX} stopping\n")
    assert "brings it back" in done.stderr
    assert api.asked[-1] == ("POST", f"{PATH}/stop", {"force": True, "wait_seconds": 0})


def test_resume_tells_each_and_fails_where_one_does(api: ScriptedApi, skerry: Run) -> None:
    api.says("POST", f"{PATH}/resume", view())
    api.says("POST", f"{OTHER_PATH}/resume", refusal(409, "files_lost", "nothing is left"))
    done = skerry("resume", BOX, OTHER)
    assert (done.returncode, done.stdout) == (1, f"{BOX} ready\n")
    assert "nothing is left" in done.stderr


def test_a_bar_is_shown_on_a_terminal_alone(api: ScriptedApi, skerry: Run) -> None:
    api.says("POST", f"{PATH}/stop", STOPPING)
    api.says("GET", PATH, view(), STOPPING, STOPPING, STOPPING, STOPPED)
    code, seen = seen_on_a_terminal([sys.executable, "-m", "skerry", "stop", BOX], environment(api))
    assert code == 0 and "storing box" in seen and "5/10 bytes" in seen
    api.says("GET", PATH, view(), STOPPING, STOPPED)
    assert skerry("stop", BOX).stderr == ""


def test_a_fork_prints_an_id_and_forks_one_each(api: ScriptedApi, skerry: Run) -> None:
    api.says("POST", f"{PATH}/fork", (201, VIEW | {"id": OTHER}))
    done = skerry("fork", "box", "-n", "copy", "-l", "a=b")
    assert (done.returncode, done.stdout) == (0, f"{OTHER}\n")
    assert api.asked[-1][2] == {"name": "copy", "metadata": {"a": "b"}}
    assert json.loads(skerry("fork", "box", "-o", "json").stdout)["id"] == OTHER
    full = {"error": {"code": "too_busy", "message": "no room"}}
    api.says("POST", f"{PATH}/fork", (201, {"data": [VIEW | {"id": OTHER}, full]}))
    done = skerry("fork", "box", "--count", "2")
    assert (done.returncode, done.stdout) == (1, f"{OTHER}\n")
    assert "no room" in done.stderr
    done = skerry("fork", "box", "--count", "2", "-o", "json")
    assert [one.get("id") for one in json.loads(done.stdout)] == [OTHER, None]
    assert skerry("fork", "box", "--count", "0").returncode == 2


def test_snapshots_are_made_listed_shown_and_deleted(api: ScriptedApi, skerry: Run) -> None:
    api.says("POST", f"{PATH}/snapshots", (201, SNAPSHOT))
    api.says("DELETE", f"/v1/snapshots/{SNAPSHOT['id']}", (204, {}))
    assert skerry("snapshot", "create", "box", "--name", "base").stdout == f"{SNAPSHOT['id']}\n"
    assert api.asked[-1][2] == {"name": "base"}
    assert skerry("snapshot", "ls", "-q", "--of", BOX).stdout == f"{SNAPSHOT['id']}\n"
    assert f"source_sandbox_id={BOX}" in api.asked[-1][1]
    assert "base" in skerry("snapshot", "ls").stdout
    assert json.loads(skerry("snapshot", "get", "base", "-o", "json").stdout)["id"] == SNAPSHOT["id"]
    done = skerry("snapshot", "rm", "base", "snap_99")
    assert (done.returncode, done.stdout) == (1, f"{SNAPSHOT['id']}\n")


def test_a_sandbox_is_made_from_a_snapshot_or_another_ones_files(api: ScriptedApi, skerry: Run) -> None:
    api.says("POST", "/v1/sandboxes", (201, VIEW))
    assert skerry("create", "--from-snapshot", "base", "--idle-timeout", "60").returncode == 0
    assert api.asked[-1][2] == {"snapshot_id": SNAPSHOT["id"], "idle_timeout_seconds": 60}
    assert skerry("create", "--restore-from", "other", "--idle-timeout", "0").returncode == 0
    assert api.asked[-1][2] == {"restore_from": OTHER, "idle_timeout_seconds": 0}
    done = skerry("create", "--from-snapshot", "nothing")
    assert done.returncode == 1 and "snapshot" in done.stderr


def test_a_list_says_when_a_sandbox_is_reclaimed_and_what_keeps_it(api: ScriptedApi, skerry: Run) -> None:
    soon = (datetime.now(UTC) + timedelta(minutes=12, seconds=30)).isoformat()
    boxes = [
        VIEW | {"idle_timeout_seconds": 1800, "reclaim_at": soon},
        VIEW | {"status": "active", "idle_timeout_seconds": 1800, "kept_awake_by": ["command"]},
        VIEW,
        VIEW | {"status": "stopped", "idle_timeout_seconds": 1800},
    ]
    api.says("GET", "/v1/sandboxes", (200, {"data": boxes, "next": None}))
    heading, *rows = skerry("ls").stdout.splitlines()
    at = heading.index("RECLAIM")
    assert [row[at : heading.index("LABELS")].strip() for row in rows] == ["in 12m", "not: command", "never", "-"]


@pytest.mark.parametrize("name", ["plain", "two words", "it's $HOME; `id`", "-rf", "é", ""])
def test_the_hint_of_a_snapshot_can_be_pasted_whatever_its_name(api: ScriptedApi, skerry: Run, name: str) -> None:
    api.says("POST", f"{PATH}/snapshots", (201, SNAPSHOT | {"name": name}))
    hinted = shlex.split(skerry("snapshot", "create", "box").stderr.partition("Next: ")[2])
    assert hinted[:3] == ["skerry", "create", "--from-snapshot"]
    assert hinted[3:] == [name if name not in ("", "-rf") else SNAPSHOT["id"]]


@pytest.mark.parametrize(
    "words",
    [
        ("stop", "nothing"),
        ("resume", "nothing"),
        ("rm", "nothing"),
        ("snapshot", "rm", "nothing"),
        ("fork", BOX, "--count", "1"),
    ],
)
def test_an_error_of_one_of_several_is_json_where_that_was_asked_for(
    api: ScriptedApi, skerry: Run, words: tuple[str, ...]
) -> None:
    api.says("POST", f"{PATH}/fork", (201, {"data": [{"error": {"code": "too_busy", "message": "no room"}}]}))
    done = skerry(*words, "-o", "json")
    assert done.returncode == 1
    assert json.loads(done.stdout) is not None
    assert json.loads(done.stderr)["error"]["message"]


def test_snapshots_of_a_sandbox_are_found_by_its_name_too(api: ScriptedApi, skerry: Run) -> None:
    assert skerry("snapshot", "ls", "-q", "--of", "other").returncode == 0
    assert f"source_sandbox_id={OTHER}" in api.asked[-1][1]
    gone = "sbx_00000000000000000009"
    assert skerry("snapshot", "ls", "-q", "--of", gone).returncode == 0
    assert f"source_sandbox_id={gone}" in api.asked[-1][1]
    done = skerry("snapshot", "ls", "--of", "nothing")
    assert done.returncode == 1 and "'nothing'" in done.stderr


def test_a_snapshot_brings_its_template_so_another_is_refused(api: ScriptedApi, skerry: Run) -> None:
    for words in (("create",), ("run",)):
        after = ("--", "true") if words == ("run",) else ()
        done = skerry(*words, "--template", "node", "--from-snapshot", "base", *after)
        assert done.returncode in (1, 125)
        assert "template" in done.stderr and "snapshot" in done.stderr
    assert not [method for method, _, _ in api.asked if method == "POST"]


def test_what_keeps_files_from_being_stored_is_told_below_a_list(api: ScriptedApi, skerry: Run) -> None:
    failing = VIEW | {"status": "stopping", "message": "the bucket says no"}
    api.says("GET", "/v1/sandboxes", (200, {"data": [failing, VIEW | {"id": OTHER, "message": "old"}], "next": None}))
    done = skerry("ls")
    assert f"{BOX}: the bucket says no" in done.stderr and "old" not in done.stderr
    assert skerry("ls", "-q").stderr == skerry("ls", "-o", "json").stderr == ""
    api.says("GET", "/v1/snapshots", (200, {"data": [SNAPSHOT | {"detail": "the bucket says no"}], "next": None}))
    assert f"{SNAPSHOT['id']}: the bucket says no" in skerry("snapshot", "ls").stderr


def test_a_sandbox_is_shown_in_words_and_not_in_python(api: ScriptedApi, skerry: Run) -> None:
    archive = {"size_bytes": 10, "stored_bytes": 4, "entries": 3, "skipped": 0}
    awake = ["command", "use"]
    api.says("GET", PATH, view(archive=archive, kept_awake_by=awake, metadata={"a": {"b": 1}}, env={"X": "it's"}))
    shown = dict(line.split(maxsplit=1) for line in skerry("get", BOX).stdout.splitlines())
    assert (shown["archive.size_bytes"], shown["archive.skipped"]) == ("10", "0")
    assert (shown["kept_awake_by"], shown["env.X"], shown["metadata.a"]) == ("command, use", "it's", '{"b": 1}')


def test_a_list_leaves_columns_out_on_a_narrow_terminal_and_nowhere_else(api: ScriptedApi, skerry: Run) -> None:
    soon = (datetime.now(UTC) + timedelta(minutes=29, seconds=30)).isoformat()
    boxes = [VIEW | {"idle_timeout_seconds": 1800, "reclaim_at": soon, "metadata": {"team": "blue"}}]
    api.says("GET", "/v1/sandboxes", (200, {"data": boxes, "next": None}))
    whole = skerry("ls").stdout.splitlines()[0].split()
    assert {"RUNTIME", "LABELS", "RECLAIM"} <= set(whole)
    for columns, there in (
        (80, {"ID", "NAME", "STATUS", "RECLAIM"}),
        (60, {"ID", "NAME", "STATUS"}),
        (300, set(whole)),
    ):
        environ = {**environment(api), "COLUMNS": str(columns)}
        code, seen = seen_on_a_terminal([sys.executable, "-m", "skerry", "ls"], environ)
        lines = seen.replace("\r", "").splitlines()
        assert code == 0 and there <= set(lines[0].split())
        assert max(len(line) for line in lines) <= columns


def test_who_interrupts_a_move_is_told_that_it_goes_on(api: ScriptedApi) -> None:
    api.says("POST", f"{PATH}/stop", STOPPING)
    api.says("GET", PATH, view(), STOPPING)
    with subprocess.Popen(
        [sys.executable, "-m", "skerry", "stop", BOX], stderr=subprocess.PIPE, text=True, env=environment(api)
    ) as child:
        deadline = time.monotonic() + 20
        while len(api.asked) < 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        _, told = child.communicate(timeout=20)
    assert child.returncode == 130
    assert "goes on" in told and "skerry ls" in told


@pytest.mark.parametrize(("words", "code"), [(("exec", "box", "--", "true"), 125), (("cp", "box:a", "b"), 1)])
def test_a_stopped_sandbox_is_brought_back_before_it_is_used(
    api: ScriptedApi, skerry: Run, words: tuple[str, ...], code: int
) -> None:
    api.says("GET", "/v1/sandboxes", (200, {"data": [VIEW | {"status": "stopped"}], "next": None}))
    api.says("POST", f"{PATH}/resume", refusal(409, "files_lost", "nothing is left"))
    done = skerry(*words)
    assert (done.returncode, api.asked[-1][:2]) == (code, ("POST", f"{PATH}/resume"))
    assert "nothing is left" in done.stderr
    api.says("GET", "/v1/sandboxes", (200, {"data": [VIEW], "next": None}))
    asked = len(api.asked)
    skerry(*words)
    assert not [path for _, path, _ in api.asked[asked:] if path.endswith("/resume")]
