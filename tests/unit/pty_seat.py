"""A program before a terminal of its own, to its end."""

import os
import pty
import subprocess
from collections.abc import Mapping, Sequence


def seen_on_a_terminal(program: Sequence[str], env: Mapping[str, str]) -> tuple[int, str]:
    """Its exit code, and all that it showed."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(program, stdin=theirs, stdout=theirs, stderr=theirs, env={**env, "TERM": "xterm"}) as child:
        os.close(theirs)
        seen = bytearray()
        try:
            while chunk := os.read(ours, 65_536):
                seen += chunk
        except OSError:  # how Linux tells that nobody holds the other end any more
            pass
        os.close(ours)
    return child.returncode, seen.decode("utf-8", "replace")
