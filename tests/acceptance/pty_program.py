"""A program on a terminal of its own, as a person sits before one. The far end belongs to the test."""

import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

DEADLINE_S = 30.0


class Seat:
    """Starts `words` with this terminal as its own, and types and reads at it."""

    def __init__(self, *words: str, env: Mapping[str, str], cwd: Path, cols: int = 80, rows: int = 24) -> None:
        self.far, self.near = os.openpty()
        self.resize(cols, rows, tell=False)
        self.before: list[Any] = termios.tcgetattr(self.near)
        self.seen = b""
        self.process = subprocess.Popen(
            words, env=dict(env), cwd=cwd, stdin=self.near, stdout=self.near, stderr=self.near, start_new_session=True
        )

    def types(self, text: str) -> None:
        os.write(self.far, text.encode())

    def sees(self, text: str) -> bytes:
        """Wait until `text` has been shown since the last call; what came up to its end."""
        wanted, deadline = text.encode(), time.monotonic() + DEADLINE_S
        while wanted not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, f"not seen: {text!r} in {self.seen[-2000:]!r}"
            if not select.select([self.far], [], [], left)[0]:
                continue
            self.seen += os.read(self.far, 65_536)
        shown, _, self.seen = self.seen.partition(wanted)
        return shown + wanted

    def resize(self, cols: int, rows: int, *, tell: bool = True) -> None:
        fcntl.ioctl(self.near, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        if tell:
            self.process.send_signal(signal.SIGWINCH)

    def ends(self) -> int:
        """Wait for its end, reading on; its exit code."""
        deadline = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it did not end: {self.seen[-2000:]!r}"
            if select.select([self.far], [], [], 0.05)[0]:
                self.seen += os.read(self.far, 65_536)
        while select.select([self.far], [], [], 0)[0]:
            self.seen += os.read(self.far, 65_536)
        return self.process.returncode

    @property
    def is_as_before(self) -> bool:
        """Whether the terminal has the settings that it had before the program came."""
        return termios.tcgetattr(self.near) == self.before

    def __enter__(self) -> "Seat":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.near)
        os.close(self.far)
