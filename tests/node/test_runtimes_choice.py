"""Which runtime an instance uses: pinned once, never weakened, refused with words that help."""

import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from node.boxes import make_home, require
from node.leaks import assert_nothing_left, moment

from skerry.config import Config
from skerry.model.errors import Refused
from skerry.model.ids import new_sandbox_id
from skerry.model.sandbox import Limits, NetworkMode, SandboxSpec
from skerry.node.records import Record, Records, Stage
from skerry.node.runtimes import DRIVERS, check, choose, pin_file
from skerry.node.runtimes.command_line import CommandLine
from skerry.node.runtimes.runsc import RUNSC

pytestmark = pytest.mark.runtime


@pytest.fixture
async def home() -> AsyncIterator[Path]:
    home, since = make_home(), moment()
    yield home
    await assert_nothing_left(Config(home=home), since=since)
    shutil.rmtree(home)


async def test_the_first_choice_is_booted_and_pinned(home: Path) -> None:
    require("runsc")
    config = Config(home=home)
    runtime = await choose(config)
    assert runtime.name == "runsc"
    assert pin_file(config).read_text() == "runsc\n"
    await runtime.close()


async def test_another_runtime_that_is_asked_for_is_booted_and_pinned_where_no_sandbox_is(home: Path) -> None:
    require("runsc")
    require("crun")
    await (await choose(Config(home=home))).close()
    other = Config(home=home, runtime="crun", allow_shared_kernel=True)
    runtime = await choose(other)
    assert (runtime.name, pin_file(other).read_text()) == ("crun", "crun\n")
    await runtime.close()


async def test_another_runtime_that_does_not_boot_leaves_the_pin_as_it_was(home: Path) -> None:
    require("crun")
    await (await choose(Config(home=home, runtime="crun", allow_shared_kernel=True))).close()
    config = Config(home=home)
    config.sbxd.unlink()
    with pytest.raises(Refused, match="does not work on this host"):
        await choose(config)
    assert pin_file(config).read_text() == "crun\n"


@pytest.mark.parametrize("stage", list(Stage))
async def test_another_runtime_is_refused_while_a_sandbox_is_on_the_pinned_one(home: Path, stage: Stage) -> None:
    require("runsc")
    config = Config(home=home)
    await (await choose(config)).close()
    records, record = Records(config.node_dir / "sandboxes"), a_record(stage)
    records.write(record)
    other = Config(home=home, runtime="crun", allow_shared_kernel=True)
    with pytest.raises(Refused, match=r"Sandboxes of this instance \(1\) are on the runtime runsc") as refused:
        await choose(other)
    assert "--runtime runsc" in refused.value.message
    assert pin_file(config).read_text() == "runsc\n"
    records.remove(record.id)
    assert check(other) == "crun"


def a_record(stage: Stage) -> Record:
    spec = SandboxSpec(
        new_sandbox_id(), 1, "blank", Limits(memory_mb=128, cpu_millis=1000, processes=64), NetworkMode.NONE, "box"
    )
    return Record(spec, stage, "runsc", "0" * 64, Path("/nowhere"), b"s" * 32, "boot")


async def test_sharing_the_kernel_needs_a_permit_that_the_refusal_names(home: Path) -> None:
    with pytest.raises(Refused, match="allow_shared_kernel"):
        await choose(Config(home=home, runtime="crun"))
    assert not pin_file(Config(home=home)).exists()


async def test_a_permit_taken_back_refuses_the_pinned_runtime(home: Path) -> None:
    require("crun")
    await (await choose(Config(home=home, runtime="crun", allow_shared_kernel=True))).close()
    with pytest.raises(Refused, match="allow_shared_kernel"):
        await choose(Config(home=home, runtime="crun"))


async def test_a_pinned_runtime_that_fails_later_is_refused_not_replaced(home: Path) -> None:
    require("runsc")
    config = Config(home=home, allow_shared_kernel=True)
    await (await choose(config)).close()
    config.sbxd.write_text("#!/nowhere\n")
    with pytest.raises(Refused, match="pinned to") as refused:
        await choose(config)
    assert "--runtime" in refused.value.message
    assert pin_file(config).read_text() == "runsc\n"


async def test_a_first_choice_that_does_not_boot_is_not_pinned(home: Path) -> None:
    require("runsc")
    config = Config(home=home)
    config.sbxd.unlink()
    with pytest.raises(Refused, match="skerry up"):
        await choose(config)
    assert not pin_file(config).exists()


async def test_a_runtime_that_is_not_installed_fails_its_probe_with_a_remedy(home: Path) -> None:
    missing = CommandLine(replace(RUNSC, name="runsc-nowhere"), Config(home=home))
    probe = await missing.probe()
    assert not probe.ok
    assert "not installed" in probe.detail
    assert "'runsc'" in probe.detail
    await missing.close()


@pytest.mark.parametrize(
    ("version", "fits"),
    [("0.0~20240729.0", True), ("release-20260105.0", True), ("0.0~20221219.0", False), ("VERSION_MISSING", False)],
)
def test_versions_of_gvisor_that_lack_what_is_needed_are_refused(version: str, fits: bool) -> None:
    assert (DRIVERS["runsc"].refuses_version(version) == "") is fits
