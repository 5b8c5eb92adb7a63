"""Sandboxes through the public client: made, found, limited, refused, destroyed."""

import subprocess
from pathlib import Path

import pytest
from acceptance.marks import on_both
from acceptance.servers import Server, eventually

from skerry import Invalid, NotFound, Sandbox, Skerry, SkerryError, Unauthorized


@on_both
def test_f2_a_sandbox_reports_what_is_in_force(client: Skerry, runtime: str) -> None:
    with client.create("python", name="one", memory_mb=256, timeout_s=7, network="none", env={"A": "b"}) as box:
        info = client.get(box.id).info
        assert (info.name, info.template, info.memory_mb, info.timeout_seconds) == ("one", "python", 256, 7)
        assert (info.network_mode, info.status, info.runtime) == ("none", "ready", runtime)
        assert box.commands.run("echo $A").stdout == "b\n"


@on_both
def test_f11_destroy_is_final_and_works_twice(client: Skerry) -> None:
    box = client.create("python")
    box.destroy()
    box.destroy()
    assert box.id not in [one.id for one in client.list()]
    with pytest.raises(SkerryError):
        box.commands.run("true")


@on_both
def test_f6_a_sandbox_is_active_exactly_while_a_command_runs(sandbox: Sandbox) -> None:
    running = sandbox.commands.start("sleep 60")
    eventually("it is active", lambda: sandbox.refresh().status == "active")
    running.kill()
    running.wait()
    eventually("it is ready", lambda: sandbox.refresh().status == "ready")


@on_both
@pytest.mark.parametrize(
    ("wrong", "field"),
    [({"template": "nonsense"}, "template"), ({"memory_mb": 0}, "memory_mb"), ({"timeout_s": -1}, "timeout_seconds")],
    ids=["template", "memory", "timeout"],
)
def test_x4_bad_input_is_refused_by_name_and_nothing_is_made(
    client: Skerry, wrong: dict[str, object], field: str
) -> None:
    before = {box.id for box in client.list()}
    with pytest.raises((Invalid, NotFound)) as caught:
        client.create(**wrong)  # pyright: ignore[reportArgumentType]
    assert caught.value.field == field
    assert {box.id for box in client.list()} == before


def test_a_wrong_key_is_unauthorized(server: Server) -> None:
    with Skerry(server.url, "skerry_live_wrong") as stranger, pytest.raises(Unauthorized):
        stranger.list().all()


def test_f31_the_active_runtime_is_reported(client: Skerry) -> None:
    found = client.capabilities()
    assert (found.runtime, found.shares_kernel) == ("runsc", False)
    assert all(probe.ok for probe in found.probes if probe.name == "runsc")


@on_both
def test_f21_none_has_no_network_at_all(client: Skerry) -> None:
    with client.create("python", network="none") as box:
        assert box.commands.run("ls /sys/class/net 2>/dev/null || awk 'NR>2{print $1}' /proc/net/dev").stdout.split()[
            -1
        ].strip(":") == ("lo")
        result = box.commands.run("python3 -c \"import socket; socket.create_connection(('192.0.2.1', 80), 3)\"")
        assert result.exit_code == 1
        assert "OSError" in result.stderr


@on_both
def test_x2_making_and_destroying_leaves_nothing(client: Skerry, server: Server) -> None:
    def leftovers() -> str:
        links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
        tag = server.config.instance
        told = Path("/proc/mounts").read_text().splitlines()
        mounts = [line for line in told if str(server.config.home) in line and "sbx_" in line]
        return "".join(line for line in links.splitlines() if tag in line) + "".join(mounts)

    before = leftovers()
    for _ in range(3):
        with client.create("python") as box:
            box.commands.run("true").check()
    eventually("nothing is left", lambda: len(leftovers()) <= len(before))
