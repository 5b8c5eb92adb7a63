"""Where cgroups go and what they tell, on layouts that this host does not have: a tree of plain files stands in."""

import os
from pathlib import Path

import pytest

from skerry.model.errors import Refused
from skerry.model.ids import SandboxId, new_sandbox_id
from skerry.model.metrics import Usage
from skerry.node import cgroups
from skerry.node.cgroups import Cgroups, detect


def unified(root: Path, controllers: str = "cpuset cpu io memory pids") -> Path:
    root.mkdir()
    (root / "cgroup.controllers").write_text(controllers)
    (root / "cgroup.subtree_control").write_text("")
    return root


def separate(root: Path) -> Path:
    for name in ("memory", "cpu", "cpuacct", "pids", "systemd"):
        (root / name).mkdir(parents=True)
        (root / name / "cgroup.procs").write_text("")
    return root


def make(root: Path, name: str, **files: str) -> SandboxId:
    sandbox_id = new_sandbox_id()
    directory = root / name / sandbox_id
    directory.mkdir(parents=True)
    for file, text in files.items():
        (directory / file.replace("__", ".")).write_text(text)
    return sandbox_id


def test_version_2_without_delegation_goes_to_the_top_with_its_controllers_on(tmp_path: Path) -> None:
    root = unified(tmp_path / "cgroup")
    found = Cgroups("0123abcd", root)
    assert found.layout.version == 2
    assert found.oci_path(SandboxId("sbx_x")) == "/skerry-0123abcd/sbx_x"
    for directory in (root, root / "skerry-0123abcd"):
        assert set((directory / "cgroup.subtree_control").read_text().split()) == {"+memory", "+cpu", "+pids"}


def service(root: Path, monkeypatch: pytest.MonkeyPatch, started_in: str) -> Path:
    """A delegated cgroup, and where in it the process was started."""
    own = root / "system.slice" / "skerry.service"
    own.mkdir(parents=True)
    (own / "cgroup.subtree_control").write_text("")
    monkeypatch.setattr(cgroups, "_own_cgroup", lambda: f"/system.slice/skerry.service{started_in}")
    monkeypatch.setattr(cgroups, "_is_delegated", lambda directory: directory == own)
    return own


def test_a_delegated_cgroup_is_preferred_by_a_process_that_was_started_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unified(tmp_path / "cgroup")
    own = service(root, monkeypatch, "/skerry-node")
    found = Cgroups("0123abcd", root)
    assert found.oci_path(SandboxId("sbx_x")) == "/system.slice/skerry.service/skerry-0123abcd/sbx_x"
    assert (own / "skerry-0123abcd").is_dir()


def test_a_delegated_cgroup_that_systemd_would_start_the_service_in_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next start would be refused while sandboxes have controllers on in it."""
    root = unified(tmp_path / "cgroup")
    own = service(root, monkeypatch, "")
    assert Cgroups("0123abcd", root).oci_path(SandboxId("sbx_x")) == "/skerry-0123abcd/sbx_x"
    assert (own / "cgroup.subtree_control").read_text() == ""


def test_joins_are_expected_by_joining_the_cgroup_one_is_in(tmp_path: Path) -> None:
    """That changes nothing, and the kernel has then done the waiting that the first to join has to do."""
    for root in (separate(tmp_path / "v1"), unified(tmp_path / "v2")):
        path = cgroups._own_procs(detect(root))  # as the host's own /proc tells it
        path.parent.mkdir(parents=True, exist_ok=True)
        Cgroups("0123abcd", root).expect_joins()
        assert path.read_text() == str(os.getpid())
        assert path.is_relative_to(root / "pids" if root.name == "v1" else root)


def test_joins_that_cannot_be_expected_are_no_error(tmp_path: Path) -> None:
    found = Cgroups("0123abcd", separate(tmp_path / "cgroup"))
    (tmp_path / "cgroup" / "pids").rename(tmp_path / "elsewhere")
    found.expect_joins()


@pytest.mark.runtime
def test_the_process_that_expects_joins_stays_where_it_is() -> None:
    before = Path("/proc/self/cgroup").read_text()
    Cgroups("0123abcd").expect_joins()
    assert Path("/proc/self/cgroup").read_text() == before


def test_missing_controllers_are_refused_with_their_names(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="memory, pids"):
        detect(unified(tmp_path / "cgroup", "cpu io"))


def test_version_2_tells_kills_and_usage(tmp_path: Path) -> None:
    root = unified(tmp_path / "cgroup")
    found = Cgroups("0123abcd", root)
    sandbox_id = make(
        root,
        "skerry-0123abcd",
        memory__events="low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\noom_group_kill 0\n",
        memory__current="4096\n",
        memory__stat="anon 3000\nfile 1096\ninactive_anon 7\ninactive_file 96\n",
        cpu__stat="usage_usec 1500\nuser_usec 1000\nsystem_usec 500\n",
        pids__current="3\n",
        cgroup__procs="",
    )
    assert found.oom_kills(sandbox_id) == 2
    assert found.usage(sandbox_id) == Usage(1, 4000, 96, 3)
    assert found.sandboxes() == {sandbox_id}


def test_version_1_tells_kills_and_usage(tmp_path: Path) -> None:
    root = separate(tmp_path / "cgroup")
    found = Cgroups("0123abcd", root)
    sandbox_id = make(
        root / "memory",
        "skerry-0123abcd",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        memory__usage_in_bytes="8192\n",
        memory__stat="inactive_file 5\ntotal_inactive_file 100\n",
    )
    assert found.layout.version == 1
    assert found.oom_kills(sandbox_id) == 1
    assert found.usage(sandbox_id) is None  # it has no cgroup of all kinds: not whole, or on its way out
    for tree, name, text in (("pids", "pids.current", "2\n"), ("cpuacct", "cpuacct.usage", "7000000\n")):
        directory = root / tree / "skerry-0123abcd" / sandbox_id
        directory.mkdir(parents=True)
        (directory / name).write_text(text)
    assert found.usage(sandbox_id) == Usage(7, 8092, 100, 2)


def test_what_is_gone_reads_as_nothing(tmp_path: Path) -> None:
    found = Cgroups("0123abcd", unified(tmp_path / "cgroup"))
    assert found.oom_kills(new_sandbox_id()) == 0
    assert found.usage(new_sandbox_id()) is None
    assert found.processes(new_sandbox_id()) == []


async def test_removing_what_is_not_there_succeeds(tmp_path: Path) -> None:
    await Cgroups("0123abcd", unified(tmp_path / "cgroup")).remove(new_sandbox_id())


def test_a_process_elsewhere_is_not_the_sandboxs() -> None:
    assert not Cgroups("0123abcd").holds(1, new_sandbox_id())
