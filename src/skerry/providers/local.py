"""The provider of this host's own sandboxes: a client of `skerry-node`.

Turns each verb of the seam into a call on the node's socket. Holds no state but idle connections; a node that is not
there is `Unavailable`, and the next call finds it again.
"""

from collections import deque
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path

from skerry.guest import shapes
from skerry.model.capability import Capabilities, Health
from skerry.model.capture import Archive, Held, Moved, Swept, Vault
from skerry.model.command import CommandEvent, Exit
from skerry.model.ids import ArchiveId, CommandId, SandboxId, TreeId
from skerry.model.leak import Leak
from skerry.model.metrics import Metrics, Sample
from skerry.model.sandbox import Observed, Placement, SandboxSpec
from skerry.model.template import BuildProgress, TemplateState
from skerry.providers.local_guest import LocalGuest, command_output
from skerry.providers.node_client import ANSWER_S, NodeCall, NodeClient
from skerry.seams import Guest

CREATE_S = 150.0  # longer than the node's own deadline, so that its answer is the one that is heard
DESTROY_S = 150.0
STOP_S = 300.0  # what was written and not yet on the disk has to go there first
SHUTDOWN_S = 300.0
MOVE_STALL_S = 3600.0  # an archive waits for its turn behind others, and says nothing meanwhile
BUILD_STALL_S = 1800.0  # no step of a build may be silent for longer
HEALTH_S = 5.0
_IDS_AT_ONCE = 500


class LocalProvider:
    """See `seams.Provider`. `close` ends idle connections; calls that run are not disturbed."""

    name = "local"

    def __init__(self, socket_path: Path) -> None:
        self._client = NodeClient(socket_path)

    async def close(self) -> None:
        await self._client.close()

    async def ready(self) -> bool:
        """Whether the node answers and has taken its sandboxes over. Raises Unavailable when it is not there."""
        return bool((await self._client.ask("ping", {}, deadline_s=5.0))["ready"])

    async def shutdown(self, *, stop_sandboxes: bool) -> None:
        """Have the node process end; with `stop_sandboxes` the sandboxes' processes too. Their files are kept."""
        await self._client.ask("shutdown", {"stop": stop_sandboxes}, deadline_s=SHUTDOWN_S)

    async def capabilities(self) -> Capabilities:
        return shapes.capabilities_from(await self._client.ask("capabilities", {}))

    async def create(self, spec: SandboxSpec, tree: TreeId | None = None) -> Placement:
        told = await self._client.ask("create", {"spec": shapes.spec_to(spec), "tree": tree}, deadline_s=CREATE_S)
        return shapes.placement_from(told)

    async def stop(self, sandbox_id: SandboxId, generation: int) -> None:
        await self._client.ask("stop", {"sandbox": sandbox_id, "generation": generation}, deadline_s=STOP_S)

    async def capture(self, sandbox_id: SandboxId, tree: TreeId) -> None:
        await self._client.ask("capture", {"sandbox": sandbox_id, "tree": tree}, deadline_s=STOP_S)

    async def archive(self, tree: TreeId, vault: Vault) -> AsyncIterator[Moved]:
        async with await self._client.open("archive", {"tree": tree, "vault": shapes.vault_to(vault)}) as call:
            async for moved in _moves(call):
                yield moved

    async def fetch(self, tree: TreeId, archive: Archive, vault: Vault) -> AsyncIterator[Moved]:
        ask = {"tree": tree, "archive": shapes.archive_to(archive), "vault": shapes.vault_to(vault)}
        async with await self._client.open("fetch", ask) as call:
            async for moved in _moves(call):
                yield moved

    async def drop(self, tree: TreeId) -> None:
        await self._client.ask("drop", {"tree": tree}, deadline_s=DESTROY_S)

    async def trees(self) -> Sequence[Held]:
        held: list[Held] = []
        async with await self._client.open("trees", {}) as call:
            while (told := await call.next(ANSWER_S)) is not None:
                assert isinstance(told, dict)
                held.append(shapes.held_from(told))
            call.check()
        return held

    async def sweep(
        self, vault: Vault, keep: Collection[ArchiveId], *, older_than_s: float, dry: bool = False
    ) -> Swept:
        ask = {"vault": shapes.vault_to(vault), "count": len(keep), "older_than_s": older_than_s, "dry": dry}
        async with await self._client.open("sweep", ask) as call:
            ids = sorted(keep)
            for at in range(0, len(ids), _IDS_AT_ONCE):
                await call.send("".join(f"{one}\n" for one in ids[at : at + _IDS_AT_ONCE]).encode())
            await call.send_eof()
            return shapes.swept_from(await call.result(MOVE_STALL_S))

    async def leaks(self) -> Sequence[Leak]:
        found: list[Leak] = []
        async with await self._client.open("leaks", {}) as call:
            while (told := await call.next(ANSWER_S)) is not None:
                assert isinstance(told, dict)
                found.append(shapes.leak_from(told))
            call.check()
        return found

    async def destroy(self, sandbox_id: SandboxId) -> None:
        await self._client.ask("destroy", {"sandbox": sandbox_id}, deadline_s=DESTROY_S)

    async def list(self) -> Sequence[Observed]:
        seen: list[Observed] = []
        async with await self._client.open("sandboxes", {}) as call:
            while (told := await call.next(60.0)) is not None:
                assert isinstance(told, dict)
                seen.append(shapes.observed_from(told))
            call.check()
        return seen

    async def watch(self) -> AsyncIterator[Observed]:
        """Sandboxes as they die. Ends with Unavailable when the node goes away: call it again, after a `list`."""
        async with await self._client.open("deaths", {}) as call:
            await call.event()
            while (told := await call.next()) is not None:
                assert isinstance(told, dict)
                yield shapes.observed_from(told)
            call.check()

    async def metrics(self, sandbox_id: SandboxId) -> Metrics:
        history: deque[Sample] = deque()
        async with await self._client.open("metrics", {"sandbox": sandbox_id}) as call:
            while (told := await call.next(ANSWER_S)) is not None:
                assert isinstance(told, dict)
                history.extend(map(shapes.sample_from, told["samples"]))
            result = call.check()
        now = None if result["now"] is None else shapes.sample_from(result["now"])
        return Metrics(result["interval_s"], now, tuple(history))

    async def health(self) -> Health:
        return shapes.health_from(await self._client.ask("health", {}, deadline_s=HEALTH_S))

    def guest(self, sandbox_id: SandboxId) -> Guest:
        return LocalGuest(self._client, sandbox_id)

    async def command_exits(self, command_ids: Sequence[CommandId]) -> dict[CommandId, Exit | None]:
        exits: dict[CommandId, Exit | None] = {}
        for at in range(0, len(command_ids), _IDS_AT_ONCE):
            part = list(command_ids[at : at + _IDS_AT_ONCE])
            told = await self._client.ask("exits", {"commands": part})
            for command_id, exit in told["exits"].items():
                exits[CommandId(command_id)] = None if exit is None else shapes.exit_from(exit)
        return exits

    def output(
        self, sandbox_id: SandboxId, command_id: CommandId, offset: int = 0, *, follow: bool = True
    ) -> AsyncIterator[CommandEvent]:
        return command_output(self._client, sandbox_id, command_id, offset, follow=follow)

    async def templates(self) -> Sequence[TemplateState]:
        return [shapes.template_from(told) for told in (await self._client.ask("templates", {}))["templates"]]

    async def build_template(self, name: str) -> AsyncIterator[BuildProgress]:
        async with await self._client.open("build_template", {"name": name}) as call:
            while (told := await call.next(BUILD_STALL_S)) is not None:
                assert isinstance(told, dict)
                yield shapes.progress_from(told)
            call.check()


async def _moves(call: NodeCall) -> AsyncIterator[Moved]:
    while (told := await call.next(MOVE_STALL_S)) is not None:
        assert isinstance(told, dict)
        yield shapes.moved_from(told)
    call.check()
