"""A fleet that runs sandboxes and keeps their files."""

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Protocol

from skerry.model.capability import Capabilities, Health
from skerry.model.capture import Archive, Held, Moved, Swept, Vault
from skerry.model.command import CommandEvent, Exit
from skerry.model.ids import ArchiveId, CommandId, SandboxId, TreeId
from skerry.model.leak import Leak
from skerry.model.metrics import Metrics
from skerry.model.sandbox import Observed, Placement, SandboxSpec
from skerry.model.template import BuildProgress, TemplateState
from skerry.seams.guest import Guest


class Provider(Protocol):
    """A fleet that runs sandboxes. Every verb is idempotent on (id, generation); an older generation is a Conflict."""

    name: str

    async def capabilities(self) -> Capabilities: ...

    async def create(self, spec: SandboxSpec, tree: TreeId | None = None) -> Placement:
        """Make the sandbox and return when sbxd answers in it. The same (id, generation) again: the same answer.

        `tree` is what its workspace begins with. None: nothing. Its own id: the workspace that was kept when it was
        stopped, or died, in an earlier generation (resume; its root layer is new). Another's: a copy of it as it is
        now, which costs the same at any size; whoever it belongs to is not disturbed.
        A failed create leaves nothing behind but what was kept before it.

        Raises:
            NotFound: Unknown template (the message lists the known ones); or, code `tree_missing`, `tree` is not here.
            Refused: The host cannot give what the spec asks for.
            TooBusy: No room now.
        """
        ...

    async def stop(self, sandbox_id: SandboxId, generation: int) -> None:
        """End its compute, whatever runs in it; keep its workspace, on disk and unchanged from then on, and no more.

        A dead or a stopped one: the same. Of a generation that is over: nothing happens.

        Raises:
            NotFound: The provider holds nothing of it.
        """
        ...

    async def capture(self, sandbox_id: SandboxId, tree: TreeId) -> None:
        """Hold a copy of a sandbox's workspace, as it is at one instant, as `tree`. Costs the same at any size.

        Whether it runs, is stopped or dead; what runs in it is not disturbed. There is such a tree: nothing happens.

        Raises:
            NotFound: The provider does not hold its workspace (`tree_missing`).
            TooBusy: No room now.
        """
        ...

    def archive(self, tree: TreeId, vault: Vault) -> AsyncIterator[Moved]:
        """Put a held tree into the object store; the last item has what was made, which was read back by then.

        Of a sandbox only when it does not run. What the vault has is not sent again. Breaking off is safe at any time:
        what was sent is found by the next one, or swept.

        Raises:
            NotFound: No such tree here (`tree_missing`).
            Conflict: The sandbox runs.
            Unavailable: The object store cannot be used now; the message has its words.
            Refused: The tree is beyond what an archive holds; the message names the limit. It is kept.
        """
        ...

    def fetch(self, tree: TreeId, archive: Archive, vault: Vault) -> AsyncIterator[Moved]:
        """Hold the files of an archive as `tree`; one that is held already stays as it is, at once. All or nothing.

        Raises:
            Unavailable: The object store cannot be used now.
            NotFound: The vault has no such archive (`archive_missing`).
            Refused: What it has is damaged; the message says where.
            TooBusy: No room now.
        """
        ...

    async def drop(self, tree: TreeId) -> None:
        """Hold a tree no more. Of a sandbox only when it was stopped. Not held: success. Copies stay.

        Raises:
            Conflict: The sandbox runs.
        """
        ...

    async def trees(self) -> Sequence[Held]:
        """All trees that the provider holds; of sandboxes only the stopped ones'."""
        ...

    async def sweep(
        self, vault: Vault, keep: Collection[ArchiveId], *, older_than_s: float, dry: bool = False
    ) -> Swept:
        """Remove from a vault what none of the archives in `keep` needs and what is older. `dry`: only count.

        Never beside an `archive` of the same vault: it waits for those, and they for it.

        Raises:
            Unavailable: The object store cannot be used now.
        """
        ...

    async def leaks(self) -> Sequence[Leak]:
        """What the fleet holds that none of its own records wants. Removes nothing; what is young is `waiting`.

        Raises:
            Unavailable: It does not answer, or is starting.
        """
        ...

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """End it, free everything, its files too. Unknown or already gone: success. The outputs of commands stay."""
        ...

    async def list(self) -> Sequence[Observed]:
        """All sandboxes this provider holds anything of: running, half-made and dead ones."""
        ...

    def watch(self) -> AsyncIterator[Observed]:
        """Sandboxes as they die. Best effort: `list` is the truth."""
        ...

    async def metrics(self, sandbox_id: SandboxId) -> Metrics:
        """What the sandbox uses now and what it used, a day back at most. A dead one's history is kept with its files.

        Raises:
            NotFound: The provider holds nothing of it.
        """
        ...

    async def health(self) -> Health:
        """Whether the fleet can be worked with now, and the room it has.

        Raises:
            Unavailable: It does not answer, or is starting.
        """
        ...

    def guest(self, sandbox_id: SandboxId) -> Guest:
        """The inside of a sandbox. Makes no call itself."""
        ...

    async def command_exits(self, command_ids: Sequence[CommandId]) -> dict[CommandId, Exit | None]:
        """How these commands ended; None = still running. Commands the provider never heard of are left out."""
        ...

    def output(
        self, sandbox_id: SandboxId, command_id: CommandId, offset: int = 0, *, follow: bool = True
    ) -> AsyncIterator[CommandEvent]:
        """As `Guest.attach`, and also after the sandbox is gone.

        Without `follow` it gives what there is now and ends: with an `Exit` if the command has ended, else without.

        Raises:
            NotFound: No such command here, or its output is no longer kept.
        """
        ...

    async def templates(self) -> Sequence[TemplateState]: ...

    def build_template(self, name: str) -> AsyncIterator[BuildProgress]:
        """Build a template, or follow the build that runs; ends at once when it is ready.

        Raises:
            NotFound: No such template.
            Refused: The build failed; the message has its last lines.
        """
        ...
