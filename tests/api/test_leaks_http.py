"""GET /v1/leaks and `skerry doctor --leaks`: for the operator, named in one list, told apart from what is young."""

import json
from collections.abc import Iterator

import httpx2
import pytest

from skerry.model.leak import Leak, LeakKind

from .conftest import Server
from .test_cli_answers import Shell

LEAK = Leak(LeakKind.SUBVOLUME, "/pool/sandboxes/\x1b[2Jx", "it goes", 7)
YOUNG = Leak(LeakKind.NETNS, "/run/netns/y", "it goes", waiting=True)


@pytest.fixture
def leaking(server: Server) -> Iterator[Server]:
    server.provider.leaked += [LEAK, YOUNG]
    yield server
    server.provider.leaked.clear()


@pytest.fixture
def operator(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(server, tmp_path_factory.mktemp("operator"))


def of(server: Server, key: str) -> httpx2.Response:
    return httpx2.get(f"{server.url}/v1/leaks", headers={"Authorization": f"Bearer {key}"})


def test_leaks_are_for_the_operator(leaking: Server, http: httpx2.Client, running: Server) -> None:
    refused = http.get("/v1/leaks")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission")
    assert "netns" not in refused.text
    told = of(running, running.key).json()
    assert told == {
        "leaks": [{"kind": "subvolume", "name": LEAK.name, "size_bytes": 7, "fate": "it goes"}],
        "waiting": [{"kind": "netns", "name": "/run/netns/y", "size_bytes": None, "fate": "it goes"}],
        "unchecked": [],
    }


def test_doctor_fails_where_something_leaks_and_acts_on_no_terminal(
    leaking: Server, running: Server, operator: Shell
) -> None:
    done = operator("doctor", "--leaks", SKERRY_API_KEY=running.key)
    assert done.returncode == 1, done.stderr
    assert "subvolume    /pool/sandboxes/?[2Jx (7 bytes)" in done.stdout and "netns" in done.stdout
    told = operator("doctor", "--leaks", "-o", "json", SKERRY_API_KEY=running.key)
    assert (told.returncode, json.loads(told.stdout)["clean"]) == (1, False)


def test_doctor_is_content_where_nothing_leaks_or_is_young(server: Server, running: Server, operator: Shell) -> None:
    server.provider.leaked.append(YOUNG)
    try:
        done = operator("doctor", "--leaks", "-o", "json", SKERRY_API_KEY=running.key)
    finally:
        server.provider.leaked.clear()
    told = json.loads(done.stdout)
    assert (done.returncode, told["clean"], told["leaks"], len(told["waiting"])) == (0, True, [], 1)


def test_doctor_says_that_it_is_for_the_operator(server: Server, http: httpx2.Client, operator: Shell) -> None:
    other = http.headers["Authorization"].removeprefix("Bearer ")
    done = operator("doctor", "--leaks", SKERRY_API_KEY=other)
    assert done.returncode == 1 and "first account" in done.stderr
