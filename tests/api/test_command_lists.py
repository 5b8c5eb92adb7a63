"""Lists of what was run in a sandbox, over HTTP and by the client."""

import httpx2
import pytest

from skerry import NotFound, Skerry

from .conftest import Server


@pytest.fixture
def path(http: httpx2.Client) -> str:
    return f"/v1/sandboxes/{http.post('/v1/sandboxes', json={}).json()['id']}/commands"


def run(http: httpx2.Client, path: str, **body: object) -> str:
    answer = http.post(path, json=body)
    assert answer.status_code in (200, 202), answer.text
    return answer.json()["id"]


def listed(http: httpx2.Client, path: str, query: str = "") -> list[str]:
    answer = http.get(f"{path}{query}")
    assert answer.status_code == 200, answer.text
    return [view["id"] for view in answer.json()["data"]]


def test_commands_are_listed_newest_first_without_their_output(http: httpx2.Client, path: str) -> None:
    ids = [run(http, path, command=f"echo {text}") for text in ("one", "two")]
    page = http.get(path).json()
    assert [view["id"] for view in page["data"]] == ids[::-1]
    assert [(view["stdout"], view["output_bytes"], view["exit_code"]) for view in page["data"]] == [("", 4, 0)] * 2
    assert {view["kind"] for view in page["data"]} == {"command"}
    assert page["next"] is None


def test_pages_go_on_behind_the_last_one(http: httpx2.Client, path: str) -> None:
    ids = [run(http, path, command="true") for _ in range(3)][::-1]
    first = http.get(f"{path}?limit=2").json()
    assert ([view["id"] for view in first["data"]], first["next"]) == (ids[:2], ids[1])
    second = http.get(f"{path}?limit=2&before={first['next']}").json()
    assert ([view["id"] for view in second["data"]], second["next"]) == (ids[2:], None)


def test_lists_are_narrowed_by_status_and_by_kind(http: httpx2.Client, path: str) -> None:
    ended = run(http, path, command="true")
    running = run(http, path, argv=["cat"], stdin_stream=True, **{"async": True})
    terminal = http.post(f"{path.removesuffix('commands')}terminals", json={"argv": ["cat"]}).json()["id"]
    assert listed(http, path) == [terminal, running, ended]
    assert listed(http, path, "?status=running") == [terminal, running]
    assert listed(http, path, "?status=running&kind=command") == [running]
    assert listed(http, path, "?status=completed&status=failed") == [ended]
    assert listed(http, path, "?kind=terminal&kind=startup") == [terminal]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("status=ready", "status"),
        ("kind=x", "kind"),
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("before=x", "before"),
    ],
)
def test_what_no_list_can_mean_is_refused_by_field(http: httpx2.Client, path: str, query: str, field: str) -> None:
    answer = http.get(f"{path}?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["field"].startswith(field)


def test_a_page_goes_on_from_a_command_of_the_same_sandbox_alone(http: httpx2.Client, path: str) -> None:
    other = f"/v1/sandboxes/{http.post('/v1/sandboxes', json={}).json()['id']}/commands"
    answer = http.get(f"{path}?before={run(http, other, command='true')}")
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "before")


def test_what_was_run_in_a_destroyed_sandbox_is_still_listed(http: httpx2.Client, path: str) -> None:
    ran = run(http, path, command="true")
    http.delete(path.removesuffix("/commands"))
    assert listed(http, path) == [ran]


def test_the_client_lists_over_pages(running: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skerry.sdk._sync.commands.PAGE", 2)
    with Skerry(running.url, running.key) as client, client.create() as box:
        ids = [box.commands.run("true").id for _ in range(5)][::-1]
        assert [one.id for one in box.commands.list()] == ids
        assert [one.id for one in box.commands.list(limit=3, status="completed")] == ids[:3]
        assert box.commands.list(kind=["startup"]) == box.commands.list(limit=0) == []
        assert box.commands.list(limit=1)[0].info.exit_code == 0
    with Skerry(running.url, running.key) as client, pytest.raises(NotFound):
        client.get("sbx_00000000000000000000").commands.list()
