"""The golden frames: examples of PROTOCOL.md that both sides' codecs are held to."""

from __future__ import annotations

import json
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

SBXD = Path(__file__).resolve().parents[2] / "sbxd"
FRAMES: list[dict[str, Any]] = json.loads((SBXD / "golden" / "frames.json").read_text())


@pytest.fixture(scope="session")
def reader() -> Path:
    subprocess.run(["make", "-s", "-C", SBXD, "build/golden"], check=True)
    return SBXD / "build" / "golden"


def test_every_type_has_an_example() -> None:
    assert {f["type"] for f in FRAMES} == set(range(1, 11))
    assert len({f["name"] for f in FRAMES}) == len(FRAMES)


@pytest.mark.parametrize("golden", FRAMES, ids=lambda g: g["name"])
def test_a_golden_frame_reads_as_it_says(golden: dict[str, Any]) -> None:
    raw = bytes.fromhex(golden["hex"])
    length, kind, channel, reserved, stream = struct.unpack_from("<IBBHI", raw)
    assert (length, reserved) == (len(raw) - 12, 0)
    assert (kind, channel, stream) == (golden["type"], golden["channel"], golden["stream"])
    if "json" in golden:
        assert json.loads(raw[12:]) == golden["json"]
    if "payload_hex" in golden:
        assert raw[12:].hex() == golden["payload_hex"]
    assert ("json" in golden) != ("payload_hex" in golden)


@pytest.mark.parametrize("golden", FRAMES, ids=lambda g: g["name"])
def test_sbxds_own_reader_agrees(reader: Path, golden: dict[str, Any]) -> None:
    """The C reader prints header and payload; its writer gives the JSON back with every byte in its place."""
    result = subprocess.run([reader], input=bytes.fromhex(golden["hex"]), capture_output=True, check=True).stdout
    header, _, payload = result.partition(b"\n")
    assert header.decode() == f"{golden['type']} {golden['channel']} {golden['stream']} {len(golden['hex']) // 2 - 12}"
    if "json" in golden:
        assert json.loads(payload) == golden["json"]
    else:
        assert payload.hex() == golden["payload_hex"]
