"""The command that a sandbox is started with: where it comes from, and its latest run."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from skerry.model.ids import CommandId, SandboxId


class StartupSource(StrEnum):
    COMMAND = "command"  # given by the owner
    FILE = "file"  # a line of /workspace/flax.startup


@dataclass(frozen=True, slots=True)
class StartupRun:
    """The latest run, one a sandbox. A generation up to `generation` is not started up by itself again.

    `command_id` is None when that generation had nothing to run.
    """

    sandbox_id: SandboxId
    generation: int
    command_id: CommandId | None = None
    ran_at: datetime | None = None
