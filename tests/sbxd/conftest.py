"""A real sbxd for each test; SBXD_BINARY names it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sbxd.client import Client, Daemon, is_alive, until


@pytest.fixture(scope="session")
def binary() -> Path:
    return Path(os.environ["SBXD_BINARY"]).resolve()


@pytest.fixture
def daemon(binary: Path, tmp_path: Path) -> Iterator[Daemon]:
    running = Daemon(binary, tmp_path)
    yield running
    assert running.process.poll() is None, f"sbxd died: {running.stderr_path.read_text()}"
    # Keepers kill what they supervise when sbxd goes, so no test leaves a process behind.
    keepers = running.keepers()
    running.stop()
    until(lambda: not any(is_alive(pid) for pid in keepers))
    said = running.stderr_path.read_text()
    assert "ERROR: AddressSanitizer" not in said and "runtime error" not in said, said


@pytest.fixture
def client(daemon: Daemon) -> Client:
    return daemon.first_client()
