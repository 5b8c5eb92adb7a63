"""Code runs on real sandboxes: the native route, and the published client's way through commands."""

from collections.abc import Iterator
from typing import Any

import flaxcloud
import httpx2
import pytest
from acceptance.marks import on_both
from acceptance.servers import Server

from skerry import Sandbox

HARD = "'\"$HOME `id` \\n %s é ✓"


@pytest.fixture
def http(server: Server) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, headers={"X-API-Key": server.key}, timeout=60) as client:
        yield client


def run(http: httpx2.Client, box: Sandbox, language: str, code: str, **more: object) -> dict[str, Any]:
    return http.post(f"/v1/sandboxes/{box.id}/code", json={"language": language, "code": code, **more}).json()


@on_both
def test_code_meets_no_shell_that_would_read_it(http: httpx2.Client, sandbox: Sandbox) -> None:
    python = run(
        http, sandbox, "Python", f"import sys, os\nprint({HARD!r}, os.getcwd())\nprint(sys.stdin.read() == '')"
    )
    assert (python["stdout"], python["stderr"], python["exit_code"]) == (f"{HARD} /workspace\nTrue\n", "", 0)
    assert python["command"].startswith("import sys, os\n")
    quoted = HARD.replace("'", "'\\''")
    for language in ("bash", "sh"):
        shell = run(http, sandbox, language, f"cat; printf '%s\\n' '{quoted}'; exit 5\nnot reached")
        assert (shell["stdout"], shell["exit_code"]) == (f"{HARD}\n", 5)
    assert run(http, sandbox, "bash", "echo ${BASH_VERSION:+bash}")["stdout"] == "bash\n"


@on_both
def test_code_has_environment_directory_and_deadline(http: httpx2.Client, sandbox: Sandbox) -> None:
    told = run(http, sandbox, "bash", "echo $A $PWD", env={"A": "a"}, working_directory="/tmp")
    assert told["stdout"] == "a /tmp\n"
    late = run(http, sandbox, "python3", "import time; print(1, flush=True); time.sleep(60)", timeout_seconds=1)
    assert (late["status"], late["stdout"]) == ("timeout", "1\n")


def test_a_megabyte_of_code_runs(http: httpx2.Client, sandbox: Sandbox) -> None:
    assert run(http, sandbox, "python", "#" * 1_000_000 + "\nprint('end')")["stdout"] == "end\n"
    assert run(http, sandbox, "sh", "#" * 1_000_000 + "\necho end")["stdout"] == "end\n"


def test_x4_what_cannot_run_is_refused_with_what_there_is(http: httpx2.Client, sandbox: Sandbox) -> None:
    for language, code in (
        ("ruby", "language_not_installed"),
        ("js", "language_not_installed"),
        ("c", "unknown_language"),
    ):
        answer = run(http, sandbox, language, "1")
        assert answer["error"]["code"] == code
        assert answer["error"]["field"] == "language"
    assert "python, node, ruby, bash, sh" in answer["error"]["message"]


@on_both
def test_the_published_clients_code_runs(server: Server, sandbox: Sandbox) -> None:
    with flaxcloud.FlaxClient(server.key, base_url=server.url) as flax:
        box = flax.get_sandbox(sandbox.id)
        assert box.code_run(f"print({HARD!r})").stdout == HARD + "\n"
        assert box.code_run("echo $0 $A", language="bash", env={"A": "a"}).stdout == "bash a\n"
        assert box.code_run("exit 4", language="sh").exit_code == 4
        late = box.code_run("import time; time.sleep(60)", timeout=1)
        assert late.status == "timeout"
        assert box.wait(box.code_run("print(1)", background=True), interval=0.1).stdout == "1\n"
