"""Makes a process of the server stop itself (SIGSTOP) where a given function of it begins or has just returned.

Python imports it at its start, from PYTHONPATH, into the processes of a server under test; the product knows nothing of
it. SIGUSR1 has it read `<directory>/<part>.step`, a JSON object, and answer in `<part>.armed`. With `record` it writes
down every function of the product that begins or returns instead, into `<part>.seen`. It never changes what runs.
"""

import json
import os
import signal
import sys
import threading
from dis import opname
from pathlib import Path
from types import FrameType
from typing import Any

DIRECTORY = "SKERRY_TEST_STEPS"


class Tracer:
    """The watcher of one process; idle until it is armed."""

    def __init__(self, directory: Path, part: str) -> None:
        self._directory = directory
        self._part = part
        self._event = self._module = self._name = ""
        self._seen: set[tuple[str, str, str]] | None = None

    def arm(self, _number: int, _frame: FrameType | None) -> None:
        told = json.loads((self._directory / f"{self._part}.step").read_text())
        self._event, self._module, self._name = told["event"], told["module"], told["name"]
        self._seen = set() if told["record"] else None
        # Threads have it from their start; this one pays for it only when there is something to watch.
        sys.setprofile(self.watch)
        (self._directory / f"{self._part}.armed").write_text(told["token"])

    def watch(self, frame: FrameType, event: str, _value: Any) -> None:
        if self._seen is not None:
            self._record(frame, event)
        elif event == self._event and frame.f_code.co_qualname == self._name and self._is_there(frame, event):
            self._event = ""  # once
            # To this thread: with one to the process another may take it, and this one goes on for a while.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    def _is_there(self, frame: FrameType, event: str) -> bool:
        if frame.f_globals.get("__name__") != self._module:
            return False
        return event == "call" or _returns(frame)

    def _record(self, frame: FrameType, event: str) -> None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith("skerry.") or event not in ("call", "return") or "<" in frame.f_code.co_name:
            return
        step = (event, module, frame.f_code.co_qualname)
        if self._seen is None or step in self._seen or (event == "return" and not _returns(frame)):
            return
        self._seen.add(step)
        with (self._directory / f"{self._part}.seen").open("a") as file:
            file.write(json.dumps(step) + "\n")


def _returns(frame: FrameType) -> bool:
    """Whether a frame that is left now has come to its end; a coroutine that waits, or an error, leaves it too."""
    if frame.f_lasti < 0:
        return False
    name = opname[frame.f_code.co_code[frame.f_lasti]]
    return name.startswith("RETURN_") and name != "RETURN_GENERATOR"


def _start() -> None:
    words = sys.orig_argv
    if DIRECTORY in os.environ and "skerry.serve" in words and words[-1] in ("node", "api"):
        tracer = Tracer(Path(os.environ[DIRECTORY]), words[-1])
        threading.setprofile(tracer.watch)
        signal.signal(signal.SIGUSR1, tracer.arm)


_start()
