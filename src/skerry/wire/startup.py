"""Startup commands on the wire (snake_case), with the published client's members."""

from datetime import datetime

from pydantic import Field

from skerry.wire.base import Answer, Request


class SetStartup(Request):
    """PUT …/startup. None or an empty text takes it away."""

    command: str | None = Field(max_length=98_304, pattern=r"^[^\x00]*$")


class StartupView(Answer):
    """`command` is what was set, `effective_command` what runs: it, or else a line of /workspace/flax.startup, which
    `source` tells (`command`, `file`).

    `status` is the latest run's: `running`, `stopped` (it ended with 0, or with its sandbox), `failed`. `command_id` is
    that run, a command like others without a deadline. `logs` is the end of its output, 64 KiB at most.
    """

    configured: bool
    command: str | None
    effective_command: str | None
    source: str | None
    status: str | None
    ran_at: datetime | None
    logs: str
    command_id: str | None
    exit_code: int | None
