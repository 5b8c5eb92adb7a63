"""`kill -9` of the parts, seen by a user of the public client."""

import pytest
from acceptance.marks import on_both
from acceptance.servers import Server

from skerry import Output, Sandbox


@on_both
@pytest.mark.parametrize("part", ["api", "node"])
def test_f34_a_stream_goes_on_after_a_part_was_killed(server: Server, sandbox: Sandbox, part: str) -> None:
    running = sandbox.commands.start("for i in $(seq 1 40); do echo line $i; sleep 0.1; done")
    seen: list[bytes] = []
    old = 0
    for event in running.events():
        assert isinstance(event, Output)
        seen.append(event.data)
        if not old:
            old = server.kill(part)
    server.restarted(part, old)
    assert b"".join(seen).decode() == "".join(f"line {i}\n" for i in range(1, 41))
    assert running.wait().exit_code == 0


@on_both
def test_f34_sandboxes_outlive_the_whole_server(server: Server, sandbox: Sandbox) -> None:
    sandbox.files.write("kept", b"kept")
    running = sandbox.commands.start("sleep 4; echo survived; exit 4")
    server.kill("supervisor")
    server.start()
    with server.client() as client:
        box = client.get(sandbox.id)
        assert box.status in ("ready", "active")
        assert box.files.read("kept") == b"kept"
        result = box.commands.get(running.id).wait()
    assert (result.stdout, result.exit_code) == ("survived\n", 4)
