"""The unit that is shipped: systemd takes it, and it says what sandboxes need in order to outlive the service."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).resolve().parents[2] / "packaging" / "systemd" / "skerry.service"
# Settings that give a service a mount namespace, or filters that sandboxes would inherit.
IN_THE_WAY = {
    "ProtectSystem",
    "ProtectHome",
    "PrivateTmp",
    "PrivateDevices",
    "PrivateMounts",
    "ProtectKernelTunables",
    "ProtectControlGroups",
    "ReadOnlyPaths",
    "SystemCallFilter",
    "RestrictNamespaces",
    "RestrictSUIDSGID",
    "MemoryDenyWriteExecute",
    "NoNewPrivileges",
}


@pytest.fixture
def service() -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    parser.read(UNIT)
    return dict(parser["Service"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    # What it starts has to be there for the check; where that is, is the host's business.
    text = UNIT.read_text().replace("/var/lib/skerry/venv/bin/skerry", shutil.which("true") or "/bin/true")
    if _version() < 254:  # which does not know it, says so and goes on; the unit says what that means
        text = text.replace("DelegateSubgroup=skerry-node\n", "")
    done = _verify(tmp_path / "skerry.service", text)
    assert (done.returncode, done.stderr) == (0, "")
    wrong = _verify(tmp_path / "skerry.service", text.replace("KillMode=process", "KillMode=proces"))
    assert "kill mode" in wrong.stderr.lower()


def _version() -> int:
    told = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True, check=True).stdout
    return int(told.split()[1])


def _verify(unit: Path, text: str) -> subprocess.CompletedProcess[str]:
    unit.write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)]
    return subprocess.run(command, capture_output=True, text=True)


def test_sandboxes_outlive_the_service(service: dict[str, str]) -> None:
    assert service["KillMode"] == "process"
    assert set(service["Delegate"].split()) >= {"cpu", "memory", "pids"}
    assert service["OOMPolicy"] == "continue"
    assert not IN_THE_WAY & set(service)


def test_our_own_processes_are_where_the_node_looks_for_them(service: dict[str, str]) -> None:
    from skerry.node import cgroups

    assert service["DelegateSubgroup"] == cgroups._LEAF  # pyright: ignore[reportPrivateUsage]


def test_it_is_given_time_to_end(service: dict[str, str]) -> None:
    from skerry import supervisor

    assert service["Type"] == "notify" and service["Restart"] == "on-failure"
    assert int(service["TimeoutStopSec"]) > 2 * supervisor.STOP_S
