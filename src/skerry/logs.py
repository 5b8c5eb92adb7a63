"""How the server's processes log: an event and its fields a line, on stderr. Called by each process, never at import.

JSON for machines, text for a terminal. Fields that hold for all a task does (`request_id`, `sandbox_id`, …) are bound
once, as context variables, and travel with the task.
"""

import logging
import os
import shutil
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog

from skerry.redaction import redact

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
REQUEST_ID = "request_id"


def configure(level: str, form: str = "auto") -> None:
    """Log from `level` on, as `json` or `text`; `auto` is text on a terminal. The libraries' warnings look the same."""
    text = form == "text" or (form == "auto" and sys.stderr.isatty())
    structlog.configure(
        processors=[*gathering(), *rendering(text=text)],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*gathering(), structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering(text=text)],
        )
    )
    logging.basicConfig(level=max(LEVELS[level], logging.WARNING), handlers=[handler], force=True)


def gathering() -> Sequence[Any]:
    """Processors that add what every line has."""
    return (
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    )


def rendering(*, text: bool) -> Sequence[Any]:
    """Processors that make a line of it, without secrets."""
    last = structlog.dev.ConsoleRenderer() if text else structlog.processors.JSONRenderer(sort_keys=False)
    return (structlog.processors.format_exc_info, redact, last)


def bind(**fields: str) -> None:
    """Add fields to every line of this task, and of the tasks it starts."""
    structlog.contextvars.bind_contextvars(**fields)


def unbind_call() -> None:
    """Forget the call that started this task: it outlives it."""
    structlog.contextvars.clear_contextvars()


def request_id() -> str | None:
    """The request that this task works for."""
    return structlog.contextvars.get_contextvars().get(REQUEST_ID)


def turn_over(file: Path, most_bytes: int) -> bool:
    """Move the content of a log file that has grown beyond `most_bytes` to `<file>.1`; whether it did.

    Only where this process's stderr is that file: it is emptied in place, since every process of the server has it
    open (for appending, so each goes on at its new end). Lines that are written between the copy and the emptying,
    some microseconds, are lost.
    """
    here = os.fstat(sys.stderr.fileno())
    if not stat.S_ISREG(here.st_mode) or here.st_size <= most_bytes:
        return False
    try:
        there = file.stat()
    except FileNotFoundError:
        return False
    if (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino):
        return False
    fresh = file.with_suffix(".log.new")
    with file.open("rb") as source, fresh.open("wb") as target:
        fresh.chmod(0o600)
        shutil.copyfileobj(source, target, 1 << 20)
    fresh.replace(file.with_suffix(".log.1"))
    os.truncate(file, 0)
    return True
