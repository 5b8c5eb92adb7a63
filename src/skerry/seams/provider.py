"""A fleet that runs sandboxes and keeps their files."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from skerry.model.capability import Capabilities, Health
from skerry.model.command import CommandEvent, Exit
from skerry.model.ids import CommandId, SandboxId
from skerry.model.metrics import Metrics
from skerry.model.sandbox import Observed, Placement, SandboxSpec
from skerry.model.template import BuildProgress, TemplateState
from skerry.seams.guest import Guest


class Provider(Protocol):
    """A fleet that runs sandboxes. Every verb is idempotent on (id, generation); an older generation is a Conflict."""

    name: str

    async def capabilities(self) -> Capabilities: ...

    async def create(self, spec: SandboxSpec) -> Placement:
        """Make the sandbox and return when sbxd answers in it. The same (id, generation) again: the same answer.

        A failed create leaves nothing behind.

        Raises:
            NotFound: Unknown template (the message lists the known ones).
            Refused: The host cannot give what the spec asks for.
            TooBusy: No room now.
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
