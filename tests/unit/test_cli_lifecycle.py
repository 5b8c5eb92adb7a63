"""`up`, `down` and `doctor` without a server: what is told, in which order, and to whom."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skerry import instance
from skerry.cli import diagnosis, launch, lifecycle, output
from skerry.config import Config
from skerry.model.capability import Probe
from skerry.model.errors import Refused
from skerry.node.network import probes
from skerry.wire.sandboxes import CapabilitiesView, ProbeView

from .test_cli import skerry

SERVER = """
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(fd, fcntl.LOCK_EX)
print("up", flush=True)
time.sleep(600)
"""


def capabilities(disk_limit: str) -> CapabilitiesView:
    pool = ProbeView(name="pool", ok=disk_limit != "none", detail="no btrfs", remedy="Install btrfs-progs.")
    return CapabilitiesView(
        provider="local",
        runtime="runsc",
        runtime_version="1",
        shares_kernel=False,
        network_modes=["none"],
        keeps_memory=False,
        disk_limit=disk_limit,
        probes=[pool],
    )


def test_up_refuses_before_it_builds_what_no_sandbox_could_use(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"allow_unlimited_disk") as refused:
        lifecycle.require_disk_limit(Config(home=tmp_path), capabilities("none"))
    assert "no btrfs" in refused.value.message and "Install btrfs-progs." in refused.value.message
    lifecycle.require_disk_limit(Config(home=tmp_path, allow_unlimited_disk=True), capabilities("none"))
    lifecycle.require_disk_limit(Config(home=tmp_path), capabilities("quota"))


def test_down_all_ends_a_server_whose_node_does_not_answer_and_says_what_may_be_left(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("down is for root")
    (tmp_path / "run").mkdir()
    argv = [sys.executable, "-c", SERVER, str(tmp_path / "run" / "skerry.pid")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"up\n"
            done = skerry("down", "--all", home=tmp_path)
            assert done.returncode == 1
            assert "has been ended" in done.stderr and "skerry up" in done.stderr
            assert server.wait(10) == -15
        finally:
            server.kill()


def test_the_log_of_a_failed_start_begins_with_that_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("the last shutdown\n")
    before = log.stat().st_size
    with log.open("a") as sink:
        sink.write("".join(f"line {n}\n" for n in range(20)))
    assert launch.tail(log, before).splitlines() == [f"  line {n}" for n in range(8, 20)]
    assert launch.tail(log, log.stat().st_size) == "(empty)"
    log.write_text("turned over\n")
    assert launch.tail(log, before) == "  turned over"
    assert launch.tail(tmp_path / "none", 0) == "(empty)"


def test_progress_is_a_line_a_percent_for_eyes_and_a_line_a_tenth_for_a_file() -> None:
    for watched, most in ((True, 101), (False, 11)):
        told: list[str] = []
        tell = output.progress(told.append, watched=watched)
        for step in range(1001):
            tell(step / 1000, f"step {step}")
        assert len(told) == most
        assert "100 %" in told[-1]


def test_what_is_data_comes_before_the_words_about_it() -> None:
    script = "from skerry.cli.output import data, hint; data('data'); hint('words')"
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    assert done.stdout == "data\nwords\n"


@pytest.mark.parametrize(
    ("encoding", "environ", "shown"),
    [
        ("utf-8", {"LANG": "en_US.UTF-8"}, "✓ a → b …"),
        ("utf-8", {"LC_ALL": "C.UTF-8", "LANG": "C"}, "✓ a → b …"),
        ("utf-8", {"LC_ALL": "C", "LANG": "en_US.UTF-8"}, "+ a -> b ..."),
        ("utf-8", {"LANG": "POSIX"}, "+ a -> b ..."),
        ("latin-1", {"LANG": "de_DE.ISO-8859-1"}, "+ a -> b ..."),
        ("ascii", {}, "+ a -> b ..."),
    ],
)
def test_signs_are_letters_where_they_cannot_be_shown(encoding: str, environ: dict[str, str], shown: str) -> None:
    assert output.drawn("✓ a → b …", io.TextIOWrapper(io.BytesIO(), encoding), environ) == shown


def test_without_nft_the_firewalls_remedy_is_nft(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (probe,) = [probe for probe in probes.run("00000000", ()) if probe.name == "firewall"]
    assert not probe.ok
    assert "nft" in probe.detail and "nftables" in (probe.remedy or "")
    assert "iptables" not in (probe.remedy or "")


def test_what_up_and_doctor_come_to_stands_on_a_line_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = Config(home=tmp_path)
    here.run_dir.mkdir()
    instance.url_file(here).write_text("http://127.0.0.1:1")
    lifecycle.report(here, launch.Started(capabilities("quota"), "started"), [], output.Format.TEXT)
    assert capsys.readouterr().out.splitlines()[:2] == [
        "",
        "Skerry is up at http://127.0.0.1:1. Active runtime: runsc, each sandbox with a kernel of its own.",
    ]
    for probe in (Probe("runsc", True, "x"), Probe("runsc", False, "x")):
        diagnosis.show(diagnosis.Report("runsc", [probe], {}, {}))
        shown = capsys.readouterr().out.splitlines()
        assert shown[1] == "" and shown[2].startswith(("Sandboxes can run", "No sandbox can run"))
