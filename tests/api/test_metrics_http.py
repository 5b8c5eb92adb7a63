"""What a sandbox uses, over HTTP."""

from datetime import UTC, datetime, timedelta

import httpx2
import pytest

from skerry.model.ids import SandboxId
from skerry.model.metrics import Sample

from .conftest import Server

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def sandbox(server: Server, http: httpx2.Client) -> str:
    """Half an hour with one core half busy, its memory growing by 1 MiB a sample."""
    made = http.post("/v1/sandboxes", json={"memory_mb": 256, "disk_mb": 512, "cpu_millis": 500}).json()
    server.provider.history[SandboxId(made["id"])] = [
        Sample(NOON + timedelta(seconds=10 * n), 5000 * n, n << 20, 7, 3, None if n < 2 else n, 2 * n, n)
        for n in range(180)
    ]
    return f"/v1/sandboxes/{made['id']}/metrics"


def test_f17_use_is_told_with_its_limits_and_history(http: httpx2.Client, sandbox: str) -> None:
    told = http.get(sandbox).json()
    assert told["limits"] == {
        "cpu_millis": 500,
        "memory_bytes": 256 << 20,
        "processes": 512,
        "disk_bytes": 512 << 20,
    }
    assert (told["interval_seconds"], len(told["history"])) == (10, 180)
    assert told["now"]["memory_bytes"] == 1 << 20
    assert told["history"][0]["cpu_percent"] is None
    assert told["history"][2] == {
        "at": "2030-01-31T12:00:20Z",
        "cpu_ms": 10_000,
        "cpu_percent": 50.0,
        "memory_bytes": 2 << 20,
        "memory_cache_bytes": 7,
        "processes": 3,
        "disk_bytes": 2,
        "network_rx_bytes": 4,
        "network_tx_bytes": 2,
    }
    assert told["history"][1]["disk_bytes"] is None


def test_history_is_cut_and_thinned_as_asked(http: httpx2.Client, sandbox: str) -> None:
    query = {"since": "2030-01-31T13:05:00+01:00", "until": "2030-01-31T12:09:59Z", "step_seconds": "60"}
    told = http.get(sandbox, params=query).json()["history"]
    assert [sample["at"][14:19] for sample in told] == ["05:50", "06:50", "07:50", "08:50", "09:50"]
    assert [sample["cpu_percent"] for sample in told] == [None, 50.0, 50.0, 50.0, 50.0]


def test_what_is_asked_wrongly_is_refused_by_name(http: httpx2.Client, sandbox: str) -> None:
    for name, value in (("since", "2030-01-31T12:00:00"), ("until", "soon"), ("step_seconds", "0"), ("step", "1")):
        answer = http.get(sandbox, params={name: value})
        assert (answer.status_code, answer.json()["error"]["field"]) == (400, name)


def test_a_counter_that_began_anew_gives_no_percentage(server: Server, http: httpx2.Client, sandbox: str) -> None:
    sandbox_id = SandboxId(sandbox.split("/")[3])
    history = server.provider.history[sandbox_id]
    server.provider.history[sandbox_id] = [history[5], Sample(history[6].at, 20, 1, 0, 1, 1, 0, 0)]
    assert [sample["cpu_percent"] for sample in http.get(sandbox).json()["history"]] == [None, None]


def test_a_failed_sandbox_keeps_its_history_and_a_destroyed_one_has_none(
    server: Server, http: httpx2.Client, sandbox: str
) -> None:
    sandbox_id = SandboxId(sandbox.split("/")[3])
    server.call(server.provider.die(sandbox_id, tell=False))
    told = http.get(sandbox).json()
    assert told["now"] is None and len(told["history"]) == 180
    assert http.delete(f"/v1/sandboxes/{sandbox_id}").status_code < 300
    answer = http.get(sandbox)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "sandbox_destroyed")
