"""Requests that are sent again over a server whose parts are killed: each is done once."""

import threading
import time

import httpx2
from acceptance.marks import on_both
from acceptance.servers import Server

from skerry import Sandbox


@on_both
def test_x2_a_create_that_is_sent_again_over_kill_9_leaves_one_sandbox(server: Server) -> None:
    mark = f"{time.time_ns()}"
    headers = {"Authorization": f"Bearer {server.key}"}
    for attempt in range(4):
        body = {"template": "python", "metadata": {"mark": mark, "attempt": attempt}}
        key = {"Idempotency-Key": f"{mark}-{attempt}"}

        def ask(body: dict[str, object] = body, key: dict[str, str] = key) -> httpx2.Response | None:
            try:
                with httpx2.Client(base_url=server.url, headers=headers, timeout=60) as http:
                    return http.post("/v1/sandboxes", json=body, headers=key)
            except httpx2.TransportError:
                return None

        first = threading.Thread(target=ask)
        first.start()
        time.sleep(0.04 * attempt)  # each time at another step of the create
        old = server.kill("api")
        answers = [ask(), ask()]
        first.join()
        server.restarted("api", old)
        again = ask()
        assert again is not None and again.status_code == 201, again and again.text
        assert again.json()["status"] == "ready"
        made = {answer.json()["id"] for answer in answers if answer is not None and answer.status_code == 201}
        assert made <= {again.json()["id"]}
    with httpx2.Client(base_url=server.url, headers=headers) as http:
        up = http.get("/v1/sandboxes", params={"status": "ready", "metadata": f"mark={mark}"}).json()["data"]
        assert sorted(one["metadata"]["attempt"] for one in up) == [0, 1, 2, 3]
        for one in http.get("/v1/sandboxes", params={"metadata": f"mark={mark}"}).json()["data"]:
            http.delete(f"/v1/sandboxes/{one['id']}")


@on_both
def test_f34_a_command_that_is_waited_for_outlives_kill_9_of_the_api_and_runs_once(
    server: Server, sandbox: Sandbox
) -> None:
    def kill() -> None:
        time.sleep(1.0)
        pids.append(server.kill("api"))

    pids: list[int] = []
    killing = threading.Thread(target=kill)
    killing.start()
    result = sandbox.commands.run("echo run >> log; sleep 3; cat log; exit 3")
    killing.join()
    server.restarted("api", pids[0])
    assert (result.stdout, result.exit_code) == ("run\n", 3)
