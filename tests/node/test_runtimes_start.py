"""What makes starts quick: a filter on what a runtime waits for, and room for its descriptors."""

import ctypes
import errno
import os
import platform
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from node.boxes import Boxes

from skerry.node import processes, syscall_filter
from skerry.node.runtimes.runsc import RUNSC

pytestmark = pytest.mark.runtime

MEMBARRIER = {"x86_64": 324, "aarch64": 283}.get(platform.machine(), -1)
QUERY, GLOBAL, REGISTER_PRIVATE_EXPEDITED = 0, 1, 1 << 4

CHILD = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall({MEMBARRIER}, {REGISTER_PRIVATE_EXPEDITED}, 0), ctypes.get_errno())
"""


def membarrier(command: int) -> int:
    """What the kernel answers, or minus the errno."""
    libc = ctypes.CDLL(None, use_errno=True)
    answer = libc.syscall(MEMBARRIER, command, 0)
    return -ctypes.get_errno() if answer == -1 else answer


async def test_only_the_registration_is_refused_and_only_to_its_thread_and_children() -> None:
    def filtered() -> tuple[int, int, int, str]:
        syscall_filter.refuse_expedited_barriers()
        said = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True).stdout
        return membarrier(QUERY), membarrier(GLOBAL), membarrier(REGISTER_PRIVATE_EXPEDITED), said.strip()

    assert await processes.in_thread(filtered) == (membarrier(QUERY), 0, -errno.EINVAL, f"-1 {errno.EINVAL}")
    assert membarrier(REGISTER_PRIVATE_EXPEDITED) == 0


@pytest.fixture
async def boxes() -> AsyncIterator[Boxes]:
    boxes = Boxes.open("runsc")
    yield boxes
    await boxes.close()


async def test_a_sentry_runs_under_the_filter_and_keeps_nothing_of_ours(boxes: Boxes) -> None:
    box = await boxes.start()
    process = Path(f"/proc/{boxes.runtime.pid_file(box.bundle.sandbox_id).read_text()}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    assert int(status["Seccomp_filters"]) == 2  # its own, and ours
    assert int(status["FDSize"]) == RUNSC.descriptors
    assert not (process / "fd" / str(RUNSC.descriptors - 1)).is_symlink()
    assert await box.answers()


async def test_a_program_starts_with_as_large_a_table_of_descriptors_as_it_is_given(tmp_path: Path) -> None:
    null = processes.null_device(tmp_path, 512)
    with (tmp_path / "said").open("w+") as said:
        stdio = processes.Stdio(null, said.fileno(), null, (null,))
        assert (await processes.run(["grep", "FDSize", "/proc/self/status"], deadline_s=10, stdio=stdio)).code == 0
        said.seek(0)
        assert said.read().split() == ["FDSize:", str(1 << null.bit_length())]
    os.close(null)
