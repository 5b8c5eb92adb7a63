"""What a sandbox is called and given, over HTTP: name, metadata, environment; lists of them; an account's use."""

import threading

import httpx2
import pytest

from .conftest import Server


def create(http: httpx2.Client, **body: object) -> dict[str, object]:
    answer = http.post("/v1/sandboxes", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def ids(answer: httpx2.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [view["id"] for view in answer.json()["data"]]


def test_an_environment_is_replaced_for_commands_from_now_on(http: httpx2.Client) -> None:
    sandbox = create(http, env={"A": "old", "B": "old"})
    path = f"/v1/sandboxes/{sandbox['id']}"
    answer = http.put(f"{path}/env", json={"env": {"A": "new"}})
    assert (answer.status_code, answer.json()["env"]) == (200, {"A": "new"})
    assert http.get(path).json()["env"] == {"A": "new"}
    shown = http.post(f"{path}/commands", json={"argv": ["env"]}).json()["stdout"].splitlines()
    assert "A=new" in shown and not [line for line in shown if line.startswith("B=")]
    assert http.put(f"{path}/env", json={"env": {}}).json()["env"] == {}


def test_lists_show_the_names_of_an_environment_and_not_its_values(http: httpx2.Client) -> None:
    sandbox = create(http, env={"TOKEN": "hunter2", "EMPTY": ""})
    listed = http.get("/v1/sandboxes")
    assert listed.json()["data"][0]["env"] == {"TOKEN": "[redacted]", "EMPTY": "[redacted]"}
    assert "hunter2" not in listed.text
    # Sent back, it would take the place of the value.
    for refused in (
        http.put(f"/v1/sandboxes/{sandbox['id']}/env", json={"env": listed.json()["data"][0]["env"]}),
        http.post("/v1/sandboxes", json={"env": {"TOKEN": "[redacted]"}}),
    ):
        assert (refused.status_code, refused.json()["error"]["field"]) == (400, "env.TOKEN")
    assert http.get(f"/v1/sandboxes/{sandbox['id']}").json()["env"]["TOKEN"] == "hunter2"


def test_what_is_wrong_with_an_environment_is_told_without_its_values(http: httpx2.Client) -> None:
    sandbox = create(http)
    for env in ({"1A": "hunter2"}, {"A": "hunter2\0"}, {"A": ["hunter2"]}, "hunter2", None):
        answer = http.put(f"/v1/sandboxes/{sandbox['id']}/env", json={"env": env})
        assert answer.status_code == 400
        assert answer.json()["error"]["field"].startswith("env")
        assert "hunter2" not in answer.text
    assert http.put(f"/v1/sandboxes/{sandbox['id']}/env", json={}).status_code == 400


def test_a_sandbox_that_has_ended_takes_no_environment_and_keeps_none(http: httpx2.Client) -> None:
    sandbox = create(http, env={"A": "b"})
    http.delete(f"/v1/sandboxes/{sandbox['id']}")
    answer = http.put(f"/v1/sandboxes/{sandbox['id']}/env", json={"env": {"A": "c"}})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "sandbox_destroyed")
    assert http.get(f"/v1/sandboxes/{sandbox['id']}").json()["env"] == {}


def test_name_and_metadata_are_replaced_and_taken_away(http: httpx2.Client) -> None:
    sandbox = create(http, name="one", metadata={"team": "a"})
    path = f"/v1/sandboxes/{sandbox['id']}"
    renamed = http.patch(path, json={"name": "two"}).json()
    assert (renamed["name"], renamed["metadata"]) == ("two", {"team": "a"})
    assert renamed["updated_at"] > sandbox["updated_at"]
    assert http.patch(path, json={"metadata": {"x": 1}}).json()["metadata"] == {"x": 1}
    assert ids(http.get("/v1/sandboxes?metadata=team=a")) == []
    assert ids(http.get("/v1/sandboxes?metadata=x=1")) == [sandbox["id"]]
    cleared = http.patch(path, json={"name": None, "metadata": None}).json()
    assert (cleared["name"], cleared["metadata"]) == (None, {})
    assert http.patch(path, json={}).json()["name"] is None
    for wrong in ({"name": ""}, {"name": 1}, {"metadata": []}, {"metadata": {"x": "y" * 70_000}}, {"state": "ready"}):
        assert http.patch(path, json=wrong).status_code == 400


def test_sandboxes_are_found_by_name_entry_and_beginning_of_the_id(http: httpx2.Client) -> None:
    one, two = create(http, name="one", metadata={"team": "a"}), create(http, name="two", metadata={"team": "b"})
    assert ids(http.get("/v1/sandboxes?name=one")) == [one["id"]]
    assert ids(http.get("/v1/sandboxes?name=on")) == []
    assert ids(http.get("/v1/sandboxes?metadata=team")) == [two["id"], one["id"]]
    assert ids(http.get("/v1/sandboxes?metadata=team&metadata=team=b")) == [two["id"]]
    assert ids(http.get("/v1/sandboxes", params={"id_prefix": str(one["id"])[:12]})) == [one["id"]]
    assert ids(http.get("/v1/sandboxes?id_prefix=sbx_%25")) == []


def test_f6_pages_of_ready_and_of_active_ones_are_full(http: httpx2.Client) -> None:
    made = [str(create(http)["id"]) for _ in range(6)]
    for sandbox in made[::2]:
        http.post(f"/v1/sandboxes/{sandbox}/commands", json={"command": "sleep 60", "async": True})
    for status, wanted in (("active", made[::2]), ("ready", made[1::2])):
        first = http.get(f"/v1/sandboxes?status={status}&limit=2").json()
        second = http.get(f"/v1/sandboxes?status={status}&limit=2&before={first['next']}").json()
        assert [view["id"] for view in first["data"] + second["data"]] == list(reversed(wanted))
        assert (len(first["data"]), second["next"]) == (2, None)
        assert {view["status"] for view in first["data"] + second["data"]} == {status}
    assert len(ids(http.get("/v1/sandboxes?status=active&status=ready"))) == 6


def test_pages_miss_and_repeat_nothing_while_sandboxes_come_and_go(server: Server, http: httpx2.Client) -> None:
    made = [str(create(http)["id"]) for _ in range(12)]
    stop = threading.Event()

    def churn() -> None:
        with httpx2.Client(base_url=server.url, headers=http.headers) as other:
            while not stop.is_set():
                other.delete(f"/v1/sandboxes/{create(other)['id']}")

    churning = threading.Thread(target=churn)
    churning.start()
    try:
        for _ in range(5):
            seen: list[str] = []
            page = http.get("/v1/sandboxes?limit=2").json()
            while True:
                seen += [view["id"] for view in page["data"]]
                if page["next"] is None:
                    break
                page = http.get(f"/v1/sandboxes?limit=2&before={page['next']}").json()
            assert len(seen) == len(set(seen))
            assert [one for one in seen if one in made] == list(reversed(made))
    finally:
        stop.set()
        churning.join(30)


def test_a_request_with_a_key_of_its_own_is_done_once(server: Server, http: httpx2.Client) -> None:
    headers = {"Idempotency-Key": "b0a4c1"}
    body = {"metadata": {"a": 1, "b": 2}, "env": {"T": "x"}}
    first = http.post("/v1/sandboxes", json=body, headers=headers)
    again = http.post("/v1/sandboxes", json={"env": {"T": "x"}, "metadata": {"b": 2, "a": 1}}, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert again.headers["Location"] == f"/v1/sandboxes/{first.json()['id']}"
    other = http.post("/v1/sandboxes", json={"env": {"T": "y"}}, headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_mismatch")
    assert server.provider.created == 1


@pytest.mark.parametrize("route", ["commands", "commands/stream"])
def test_a_command_with_a_key_of_its_own_runs_once(server: Server, http: httpx2.Client, route: str) -> None:
    path = f"/v1/sandboxes/{create(http)['id']}"
    body, headers = {"command": "echo once"}, {"Idempotency-Key": "k"}
    answers = [http.post(f"{path}/{route}", json=body, headers=headers) for _ in range(3)]
    assert len({answer.text for answer in answers}) == 1, answers[0].text
    (guest,) = [sandbox.guest for sandbox in server.provider.sandboxes.values() if sandbox.spec.id in path]
    assert len(guest._commands) == 1
    # The other route is another request.
    elsewhere = "commands/stream" if route == "commands" else "commands"
    assert http.post(f"{path}/{elsewhere}", json=body, headers=headers).status_code == 409


def test_a_started_command_with_a_key_of_its_own_is_found_again(http: httpx2.Client) -> None:
    path = f"/v1/sandboxes/{create(http)['id']}/commands"
    body, headers = {"command": "sleep 60", "async": True}, {"Idempotency-Key": "k"}
    first, again = (http.post(path, json=body, headers=headers) for _ in range(2))
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["id"] == again.json()["id"]
    assert http.post(path, json={**body, "command": "sleep 6"}, headers=headers).status_code == 409


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "é"])
def test_a_key_that_cannot_be_one_is_refused(http: httpx2.Client, key: str) -> None:
    answer = http.post("/v1/sandboxes", json={}, headers={"Idempotency-Key": key.encode()})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "Idempotency-Key")


def test_x4_a_key_is_refused_where_it_would_be_ignored(http: httpx2.Client) -> None:
    answer = http.post("/v1/keys", json={"name": "x"}, headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unknown_field")
    assert len(http.get("/v1/keys").json()["data"]) == 1


def test_use_is_counted_beside_the_plans_limits(http: httpx2.Client) -> None:
    empty = http.get("/v1/usage").json()
    assert (empty["plan"], empty["sandboxes"]["ready"], empty["memory_mb"]) == ("unlimited", 0, 0)
    assert set(empty["limits"].values()) == {None}
    made = [create(http, memory_mb=256, disk_mb=1000, cpu_millis=500) for _ in range(3)]
    http.post(f"/v1/sandboxes/{made[0]['id']}/commands", json={"command": "sleep 60", "async": True})
    http.delete(f"/v1/sandboxes/{made[2]['id']}")
    used = http.get("/v1/usage").json()
    assert {status: count for status, count in used["sandboxes"].items() if count} == {"ready": 1, "active": 1}
    assert (used["running_commands"], used["memory_mb"], used["cpu_millis"], used["disk_mb"]) == (1, 512, 1000, 2000)
    assert used["sandbox_limits"]["memory_mb"] == 16_384


def test_a_key_is_shown_by_its_prefix_and_the_last_one_stays(http: httpx2.Client) -> None:
    made = http.post("/v1/keys", json={"name": "ci"}).json()
    listed = {key["id"]: key for key in http.get("/v1/keys").json()["data"]}
    assert made["key"].startswith(made["prefix"]) and len(made["prefix"]) < 20
    assert (listed[made["id"]]["prefix"], listed[made["id"]]["key"]) == (made["prefix"], None)
    (first,) = [key for key in listed if key != made["id"]]
    assert http.delete(f"/v1/keys/{made['id']}").status_code == 204
    last = http.delete(f"/v1/keys/{first}")
    assert (last.status_code, last.json()["error"]["code"]) == (409, "last_key")
    assert http.get("/v1/me").status_code == 200
