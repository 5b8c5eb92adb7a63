"""A terminal inside on the terminal here: keys go in as they are typed, its bytes come out as they are.

The terminal here is put back as it was on every way out. What a program inside writes acts on it, as with ssh.
"""

import os
import queue
import select
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skerry.cli.foreground import writer
from skerry.cli.interrupts import held
from skerry.cli.output import ReaderGone, hint
from skerry.model.errors import Invalid, SkerryError

if TYPE_CHECKING:
    from skerry.sdk import Attachment, Terminal

CHUNK_BYTES = 4096
MOST_WAITING = 256  # chunks of input that wait for the server
PATIENCE_S = 0.2
ESCAPE = b"~"
HELP = "\r\n~. leave, and let it go on   ~~ type ~   ~? this help\r\n"
# What a program that was left in the middle may have switched on: other screen, mouse, paste marks; hidden cursor.
_CALM = b"\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?1l\x1b>\x1b[?25h\x1b[0m"


class Left(Exception):
    """The user has left with the escape keys."""


@dataclass(slots=True)
class Escape:
    """Finds `~.` at the beginning of a line among keys, as ssh does."""

    fresh: bool = True  # at the beginning of a line
    pending: bool = False  # a ~ was typed there

    def take(self, keys: bytes) -> tuple[bytes, str]:
        """What to pass on, and what is asked for: `leave`, `help` or nothing."""
        passed, asked = bytearray(), ""
        for key in keys:
            one = bytes((key,))
            if self.pending:
                self.pending = False
                if one == b".":
                    return bytes(passed), "leave"
                if one == b"?":
                    asked = "help"
                    continue  # and the line is as fresh as it was
                self.fresh = False
                if one != ESCAPE:
                    passed += ESCAPE
            elif self.fresh and one == ESCAPE:
                self.pending = True
                continue
            passed += one
            self.fresh = one in (b"\r", b"\n")
        return bytes(passed), asked


def require_terminal(otherwise: str) -> None:
    """Raises Invalid, with these words, where there is no terminal here."""
    if not (os.isatty(0) and os.isatty(1)):
        raise Invalid(otherwise)


def size() -> tuple[int, int]:
    """Columns and rows here."""
    here = shutil.get_terminal_size((80, 24))
    return here.columns, here.lines


def converse(opened: "Callable[[], Terminal]", *, escape: bool = True) -> int:
    """Open a terminal and serve it to its end, and give its exit code; or until the user leaves it, which is 0.

    An interrupt from outside (SIGTERM, SIGHUP) ends the terminal inside, too.
    """
    with held() as interrupts:
        terminal = opened()
        try:
            with interrupts.released(), terminal.attach() as attachment, _raw():
                return _serve(attachment, Escape() if escape else None)
        except Left:
            hint(f"skerry: left; it goes on. Back: skerry shell {terminal.info.sandbox_id} --attach {terminal.id}")
            return 0
        except (KeyboardInterrupt, ReaderGone):
            with suppress(SkerryError):
                terminal.close()
            raise


def _serve(attachment: "Attachment", escape: Escape | None) -> int:
    from skerry.sdk import Lost

    write = writer(1)
    keyboard = Keyboard(attachment, escape)
    keyboard.start()
    with keyboard.told_of_sizes():
        with suppress(SkerryError):  # it has ended already: the events say how
            attachment.resize(*size())
        try:
            for event in attachment.events():
                if isinstance(event, Lost):
                    write(f"\r\n[{event.length} bytes of output are not kept]\r\n".encode())
                else:
                    write(event.data)
        except KeyboardInterrupt:
            if not keyboard.left:
                raise
    if keyboard.left:
        write(_CALM + b"\r\n")
        raise Left
    assert attachment.ended is not None
    return attachment.ended.shell_code


class Keyboard:
    """Reads keys in one thread and sends them in another, so that the escape keys work while nothing can be sent."""

    def __init__(self, attachment: "Attachment", escape: Escape | None) -> None:
        self._attachment = attachment
        self._escape = escape
        self._waiting: queue.Queue[Callable[[], None]] = queue.Queue(MOST_WAITING)
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.left = False

    def start(self) -> None:
        """Begin. Both threads end with the program: they may stand in a read or a send that never ends."""
        for work in (self._read, self._send):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    @contextmanager
    def told_of_sizes(self) -> Generator[None]:
        """Pass on new sizes of the terminal here. A handler may not send: it only wakes the reader."""
        before = signal.signal(signal.SIGWINCH, lambda number, frame: self._resized())
        try:
            yield
        finally:
            signal.signal(signal.SIGWINCH, before)

    def _resized(self) -> None:
        with suppress(BlockingIOError):  # it has been woken, and will look
            os.write(self._wake, b"w")

    def _read(self) -> None:
        while True:
            ready, _, _ = select.select([0, self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, CHUNK_BYTES)
                self._put(lambda: self._attachment.resize(*size()))
            if 0 in ready and not self._keys():
                return

    def _keys(self) -> bool:
        try:
            keys = os.read(0, CHUNK_BYTES)
        except OSError:  # the terminal here has gone; SIGHUP says so as well
            return False
        if not keys:
            return False
        asked = ""
        if self._escape is not None:
            keys, asked = self._escape.take(keys)
        if keys:
            self._put(lambda: self._attachment.send(keys))
        if asked == "help":
            os.write(1, HELP.encode())
        if asked == "leave":
            self.left = True
            os.kill(os.getpid(), signal.SIGINT)  # wakes whoever waits for output
            return False
        return True

    def _put(self, act: Callable[[], None]) -> None:
        while True:
            try:
                return self._waiting.put(act, timeout=PATIENCE_S)
            except queue.Full:
                # Without a connection keys are dropped, so that the escape keys are still seen.
                if not self._attachment.connected:
                    return None

    def _send(self) -> None:
        with suppress(SkerryError):  # it has ended; whoever reads the events says so
            while True:
                self._waiting.get()()


@contextmanager
def _raw() -> Generator[None]:
    """Keys as they are typed, nothing echoed and nothing translated here; put back at the end, whatever comes."""
    before = termios.tcgetattr(0)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGQUIT, signal.SIGCONT)}
    try:
        signal.signal(signal.SIGQUIT, _interrupted)
        signal.signal(signal.SIGCONT, lambda number, frame: tty.setraw(0, termios.TCSADRAIN))  # stopped from outside
        tty.setraw(0, termios.TCSADRAIN)
        yield
    finally:
        with suppress(termios.error):  # the terminal has gone
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        sys.stdout.flush()


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt
