"""What has to hold after a crash in the middle of a create, of a command, of a destroy: once, for every step."""

from acceptance.servers import eventually
from crash.instances import SETTLED_S, CrashServer, Step
from crash.leftovers import held_by

from skerry import CommandResult, NotFound, Sandbox

LAST = 40
# Says that it ran, and how often, where only it can say so.
COUNTING = f"echo ran >> /workspace/ran; for i in $(seq 1 {LAST}); do echo $i; sleep 0.01; done; exit 7"
COUNTED = "".join(f"{i}\n" for i in range(1, LAST + 1))


def create(server: CrashServer, step: Step, victim: str) -> None:
    """A create is finished or undone: nothing lost that was promised, nothing kept that nobody knows."""
    with server.only_client() as client:
        told = server.crash(step, victim, lambda: client.create())
        boxes = server.settled(client)
        assert len(boxes) <= 1
        if told.answer is not None:
            assert [(box.id, box.status) for box in boxes] == [(told.answer.id, "ready")]
        for box in boxes:
            if box.status == "ready":
                assert box.commands.run("echo works").stdout == "works\n"
            else:
                assert (box.status, box.info.reason) == ("failed", "create")
                assert box.info.message
                holds_nothing_of(server, box)
        with client.create() as another:
            assert another.commands.run("echo works").stdout == "works\n"


def holds_nothing_of(server: CrashServer, box: Sandbox) -> None:
    # The reconciler removes what a failed create has left.
    eventually(
        f"nothing of {box.id} is left",
        lambda: not [line for line in held_by(server.config) if box.id in line],
        within_s=SETTLED_S,
        every_s=0.1,
    )


def command(server: CrashServer, step: Step, victim: str) -> None:
    """A command runs once and is told to its end, or did not run and is told so."""
    with server.client(retries=0) as client, client.create() as box:
        told = server.crash(step, victim, lambda: box.commands.start(COUNTING).wait())
        if told.answer is not None:
            _counted(told.answer, box)
        for command_id in server.commands_of(box.id):
            result = _ended(box, command_id)
            if result.status == "completed":
                _counted(result, box)
            else:
                assert (result.status, result.reason) == ("failed", "not_started")
                assert result.message
                assert _runs(box) == 0
        before = _runs(box)
        assert box.commands.run("echo works").stdout == "works\n"
        assert _runs(box) == before


def _ended(box: Sandbox, command_id: str) -> CommandResult:
    command = box.commands.get(command_id)
    eventually(f"{command_id} ends", lambda: command.poll().status != "running", within_s=SETTLED_S, every_s=0.1)
    return command.wait()


def _counted(result: CommandResult, box: Sandbox) -> None:
    assert (result.stdout, result.exit_code, result.lost_bytes) == (COUNTED, 7, 0)
    assert _runs(box) == 1


def _runs(box: Sandbox) -> int:
    try:
        return box.files.read("/workspace/ran").decode().count("ran")
    except NotFound:
        return 0


def destroy(server: CrashServer, step: Step, victim: str) -> None:
    """A destroy is finished, or was never begun; asking again is answered as if nothing had happened."""
    with server.only_client() as client:
        box = client.create()
        sleeping = box.commands.start("sleep 600")
        told = server.crash(step, victim, box.destroy)
        left = server.settled(client)
        box.refresh()
        if told.error is None or not left:
            assert box.status == "destroyed"
        else:
            assert box.commands.run("echo works").stdout == "works\n"
        box.destroy()
        assert box.refresh().status == "destroyed"
        holds_nothing_of(server, box)
        ended = box.commands.get(sleeping.id).wait()
        assert (ended.status, ended.reason, ended.exit_code) == ("failed", "sandbox_gone", None)
