"""Commands of a `FakeGuest`: a handful of programs and just enough of a shell, interpreted in memory.

Knows `true false echo printf cat sleep pwd env read stty exit cd export unset`, `sh` with and without `-c`, `;`, `&&`,
`> file`, `>&2` and `$NAME`; and the fixed scripts that it is given (see `fixed_scripts`).
"""

import asyncio
import posixpath
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from skerry.model.command import ExecSpec, Exit, Output
from skerry.model.errors import GuestError
from skerry.testing.fake_files import FakeFiles, normal

_STDOUT, _STDERR = 1, 2
_HARMLESS = frozenset({17, 18, 23, 28})  # SIGCHLD, SIGCONT, SIGURG, SIGWINCH: their default is to do nothing
_SIGKILL = 9
_ESCAPES = {r"\n": b"\n", r"\t": b"\t", r"\\": b"\\", r"\0": b"\0"}
_ESCAPE = re.compile(rb"\\(?:x[0-9a-fA-F]{2}|[0-7]{3}|[nt\\0])")


class ShellExit(Exception):
    """The `exit` builtin, on its way out of the script."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(slots=True)
class FakeCommand:
    """One command: all of its output, its stdin, and its end once it has one."""

    spec: ExecSpec
    env: dict[str, str]
    cwd: str
    pid: int
    rows: int = 24
    cols: int = 80
    output: list[Output] = field(default_factory=list[Output])
    offset: int = 0
    stdin: bytearray = field(default_factory=bytearray)
    stdin_ended: bool = False
    exit: Exit | None = None
    signal: int | None = None
    task: asyncio.Task[None] | None = None
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def write(self, channel: int, data: bytes) -> None:
        if data:
            channel = _STDOUT if self.spec.tty else channel
            self.output.append(Output(channel, self.offset, data))
            self.offset += len(data)
            await self.notify()

    def send_signal(self, number: int) -> None:
        """End it as the signal's default would. Ended already: nothing happens."""
        if self.exit is None and self.task is not None and number not in _HARMLESS:
            self.signal = number
            self.task.cancel()


class FakeShell:
    """Runs commands on a fake's files.

    `fixed` are scripts for `sh -c` that are known by their text, and what stands for each: it is handed the arguments
    behind the script's name.
    """

    def __init__(self, files: FakeFiles, fixed: "Mapping[str, FixedScript] | None" = None) -> None:
        self.files = files
        self._fixed = fixed or {}
        self._programs: dict[str, Callable[[FakeCommand, Sequence[str], int], Awaitable[int]]] = {
            "true": self._true,
            "false": self._false,
            "echo": self._echo,
            "printf": self._printf,
            "cat": self._cat,
            "sleep": self._sleep,
            "pwd": self._pwd,
            "env": self._env,
            "read": self._read,
            "stty": self._stty,
            "exit": self._exit,
            "cd": self._cd,
            "export": self._export,
            "unset": self._unset,
            "sh": self._sh,
        }

    def check(self, command: FakeCommand) -> None:
        """Raises GuestError when it cannot be started."""
        if command.spec.argv and posixpath.basename(command.spec.argv[0]) not in self._programs:
            raise GuestError("not_found", f"{command.spec.argv[0]}: not found", errno=2)

    async def run(self, command: FakeCommand) -> None:
        """Run it to its end and record that."""
        code: int | None = None
        timed_out = False
        try:
            async with asyncio.timeout(command.spec.timeout_s):
                code = await self._main(command)
        except TimeoutError:
            command.signal, timed_out = _SIGKILL, True
        except asyncio.CancelledError:
            if command.signal is None:  # not one of our signals: the test is over
                raise
        signal = command.signal if code is None else None
        command.exit = Exit(code, signal, timed_out, command.offset, duration_ms=1)
        await command.notify()

    async def _main(self, command: FakeCommand) -> int:
        try:
            if command.spec.shell is not None:
                return await self.script(command, command.spec.shell)
            return await self._program(command, command.spec.argv, _STDOUT)
        except ShellExit as end:
            return end.code

    async def script(self, command: FakeCommand, script: str) -> int:
        lexer = shlex.shlex(script.replace("\n", ";"), posix=True, punctuation_chars=";&>")
        lexer.whitespace_split = True
        code, words = 0, list[str]()
        for word in [*lexer, ";"]:
            if word not in (";", "&&"):
                words.append(word)
                continue
            if words:
                code = await self._simple(command, words)
                words = []
            if word == "&&" and code:
                break
        return code

    async def _simple(self, command: FakeCommand, words: list[str]) -> int:
        channel = _STDOUT
        target: str | None = None
        if ">" in words:
            at = words.index(">")
            target, words = words[at + 1], words[:at]
        elif words[-2:] == [">&", "2"]:
            channel, words = _STDERR, words[:-2]
        words = [re.sub(r"\$(\w+)", lambda name: command.env.get(name[1], ""), word) for word in words]
        if target is None:
            return await self._program(command, words, channel)
        before = len(command.output)
        code = await self._program(command, words, channel)
        written = b"".join(item.data for item in command.output[before:])
        del command.output[before:]
        command.offset -= len(written)
        self.files.put(posixpath.join(command.cwd, target), written)
        return code

    async def _program(self, command: FakeCommand, argv: Sequence[str], channel: int) -> int:
        program = self._programs.get(posixpath.basename(argv[0]))
        if program is None:
            await command.write(_STDERR, f"sh: {argv[0]}: not found\n".encode())
            return 127
        return await program(command, argv[1:], channel)

    async def _true(self, command: FakeCommand, args: Sequence[str], channel: int) -> int:
        return 0

    async def _false(self, command: FakeCommand, args: Sequence[str], channel: int) -> int:
        return 1

    async def _exit(self, command: FakeCommand, args: Sequence[str], channel: int) -> int:
        raise ShellExit(int(args[0]) & 255 if args else 0)

    async def _sh(self, command: FakeCommand, args: Sequence[str], channel: int) -> int:
        if args:
            fixed = self._fixed.get(args[1])
            return await (self.script(command, args[1]) if fixed is None else fixed(self, command, args[3:]))
        code = 0
        while line := await take_stdin(command, lambda: command.stdin.find(b"\n") + 1):
            code = await self.script(command, line.decode())
        return code

    async def _cd(self, command: FakeCommand, args: Sequence[str], channel: int) -> int:
        target = normal(posixpath.join(command.cwd, args[0]))
        node = self.files.nodes.get(target)
        if node is None or node.data is not None:
            await command.write(_STDERR, f"sh: cd: {args[0]}: No such directory\n".encode())
            return 1
        command.cwd = target
        return 0

    async def _export(self, command: FakeCommand, args: Sequence[str], channel: int) -> int:
        command.env |= {name: value for name, _, value in (word.partition("=") for word in args)}
        return 0

    async def _unset(self, command: FakeCommand, args: Sequence[str], channel: int) -> int:
        for name in args:
            command.env.pop(name, None)
        return 0

    async def _echo(self, command: FakeCommand, args: Sequence[str], channel: int) -> int:
        await command.write(channel, _bytes(" ".join(args)) + b"\n")
        return 0

    async def _printf(self, command: FakeCommand, args: Sequence[str], channel: int) -> int:
        await command.write(channel, _ESCAPE.sub(_unescape, _bytes(args[0])))
        return 0

    async def _pwd(self, command: FakeCommand, args: Sequence[str], channel: int) -> int:
        await command.write(channel, _bytes(command.cwd) + b"\n")
        return 0

    async def _env(self, command: FakeCommand, args: Sequence[str], channel: int) -> int:
        await command.write(channel, b"".join(_bytes(f"{name}={value}\n") for name, value in command.env.items()))
        return 0

    async def _sleep(self, command: FakeCommand, args: Sequence[str], channel: int) -> int:
        await asyncio.sleep(float(args[0]))
        return 0

    async def _stty(self, command: FakeCommand, args: Sequence[str], channel: int) -> int:
        await command.write(channel, f"{command.rows} {command.cols}\n".encode())
        return 0

    async def _cat(self, command: FakeCommand, args: Sequence[str], channel: int) -> int:
        if args:
            try:
                await command.write(channel, self.files.data(posixpath.join(command.cwd, args[0])))
            except GuestError as error:
                await command.write(_STDERR, f"cat: {error.message}\n".encode())
                return 1
            return 0
        while data := await take_stdin(command, lambda: len(command.stdin)):
            await command.write(channel, data)
        return 0

    async def _read(self, command: FakeCommand, args: Sequence[str], channel: int) -> int:
        line = await take_stdin(command, lambda: command.stdin.find(b"\n") + 1)
        if args:
            command.env[args[0]] = line.decode().rstrip("\n")
        return 0 if line.endswith(b"\n") else 1


FixedScript = Callable[[FakeShell, FakeCommand, Sequence[str]], Awaitable[int]]


async def take_stdin(command: FakeCommand, ready: Callable[[], int]) -> bytes:
    """As many bytes as `ready` says, once it says any; what is left at the end of file."""
    async with command.changed:
        await command.changed.wait_for(lambda: ready() > 0 or command.stdin_ended)
        count = ready() or len(command.stdin)
        taken = bytes(command.stdin[:count])
        del command.stdin[:count]
        command.changed.notify_all()  # there is room again
        return taken


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _unescape(found: re.Match[bytes]) -> bytes:
    text = found[0].decode()
    if text in _ESCAPES:
        return _ESCAPES[text]
    return bytes([int(text[2:], 16) if text[1] == "x" else int(text[1:], 8) & 255])
