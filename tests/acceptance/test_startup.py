"""Startup commands on real sandboxes, by the published client: once for each create, whoever dies."""

from collections.abc import Iterator

import flaxcloud
import pytest
from acceptance.marks import on_both
from acceptance.servers import Server, eventually
from flaxcloud.sandbox import Sandbox

ALIVE = "cat /proc/[0-9]*/comm 2>/dev/null | grep -c '^sleep$'"


@pytest.fixture
def flax(server: Server) -> Iterator[flaxcloud.FlaxClient]:
    with flaxcloud.FlaxClient(server.key, base_url=server.url) as client:
        yield client


@pytest.fixture
def box(flax: flaxcloud.FlaxClient) -> Iterator[Sandbox]:
    with flax.create_sandbox("python", network_mode="none") as box:
        yield box


@on_both
def test_f14_the_startup_command_runs_on_create_and_is_no_activity(flax: flaxcloud.FlaxClient) -> None:
    command = "echo up at $PWD; echo err >&2; echo $A > /tmp/a; sleep 300"
    with flax.create_sandbox("python", startup_command=command, env={"A": "env"}, network_mode="none") as box:
        assert box.startup_command == command
        eventually("it has spoken", lambda: box.startup().logs == "up at /workspace\nerr\n")
        startup = box.startup()
        assert (startup.configured, startup.command, startup.effective_command) == (True, command, command)
        assert (startup.source, startup.status) == ("command", "running")
        assert startup.ran_at is not None
        assert box.refresh().status == "ready"
        assert box.run("cat /tmp/a").stdout == "env\n"


@on_both
def test_a_startup_that_fails_or_ends_says_so(box: Sandbox) -> None:
    assert box.startup().status is None
    box.set_startup("echo no; exit 3")
    assert box.startup().status is None  # set, not run
    box.run_startup()
    eventually("it has failed", lambda: box.startup().status == "failed")
    assert box.startup().logs == "no\n"
    box.set_startup("true")
    box.run_startup()
    eventually("it has ended", lambda: box.startup().status == "stopped")


@on_both
def test_f16_f17_the_file_counts_where_no_command_is_set(box: Sandbox) -> None:
    with pytest.raises(flaxcloud.FlaxConflictError) as refused:
        box.run_startup()
    assert refused.value.code == "startup_not_configured"
    box.upload("flax.startup", "#!/bin/sh\n\n  # a comment\r\n\t echo from the file \nexit 9\n")
    startup = box.startup()
    assert (startup.configured, startup.command, startup.source) == (True, None, "file")
    assert startup.effective_command == "echo from the file"
    box.run_startup()
    eventually("it has ended", lambda: box.startup().status == "stopped")
    assert box.startup().logs == "from the file\n"
    assert box.set_startup("echo set").source == "command"
    assert box.set_startup(None).source == "file"
    assert box.set_startup("").effective_command == "echo from the file"


def test_f17_a_hostile_startup_file_is_none(box: Sandbox) -> None:
    for make in (
        "ln -s /dev/zero flax.startup",
        "mkfifo flax.startup",
        "mkdir flax.startup",
        "truncate -s 1T flax.startup",
        "head -c 10000000 /dev/zero | tr '\\0' x > flax.startup",
        "printf 'echo \\377' > flax.startup",
        "printf '#\\n\\n#' > flax.startup",
    ):
        assert box.run(f"cd /workspace && {make}").ok
        assert box.startup().configured is False, make
        box.run("rm -r /workspace/flax.startup")


@on_both
def test_a_new_run_kills_what_the_one_before_started(box: Sandbox) -> None:
    box.set_startup("sleep 314 & setsid sleep 314 & sleep 314")
    box.run_startup()
    eventually("all run", lambda: box.run(ALIVE).stdout == "3\n")
    box.set_startup("setsid sleep 314 >/dev/null 2>&1 & echo over")
    box.run_startup()
    eventually("it has ended", lambda: box.startup().status == "stopped")
    assert box.run(ALIVE).stdout == "1\n"
    box.set_startup("echo third")
    box.run_startup()
    eventually("it has ended", lambda: box.startup().logs == "third\n")
    assert box.run(ALIVE).stdout == "0\n"


@on_both
def test_a_startup_survives_the_death_of_api_and_node(server: Server, flax: flaxcloud.FlaxClient) -> None:
    loop = "while :; do echo tick; sleep 0.2; done"
    with flax.create_sandbox("python", startup_command=loop, network_mode="none") as box:
        eventually("it ticks", lambda: "tick" in box.startup().logs)
        for part in ("api", "node"):
            server.restarted(part, server.kill(part))
            before = len(box.startup().logs)
            eventually("it goes on", lambda then=before: len(box.startup().logs) > then)
            assert box.startup().status == "running"


def test_f14_it_runs_once_when_the_api_dies_right_after_a_create(server: Server, flax: flaxcloud.FlaxClient) -> None:
    made: list[Sandbox] = []
    for _ in range(3):
        made.append(flax.create_sandbox("python", startup_command="echo x >> /workspace/runs", network_mode="none"))
        server.restarted("api", server.kill("api"))
    for box in made:
        eventually("it has run", lambda box=box: box.startup().status == "stopped", within_s=20)
        assert box.run("cat /workspace/runs").stdout == "x\n"
        box.destroy()
