"""What stands in a `FakeShell` for the scripts that control wraps commands in: the same effect, without their shell."""

import re
from collections.abc import Mapping, Sequence

from skerry.control.code import OWN_DESCRIPTOR
from skerry.control.git_script import LAUNCH as GIT
from skerry.control.shell_state import LAUNCH as SESSION
from skerry.control.startup import AFRESH
from skerry.testing.fake_shell import FakeCommand, FakeShell, FixedScript, ShellExit, take_stdin

_PATH = re.compile(r"/run/skerry/([0-9a-f]{32})")


async def _session(shell: FakeShell, command: FakeCommand, args: Sequence[str]) -> int:
    """Runs the text, and leaves directory and variables where they are looked for."""
    wrapper, text, command.cwd = args[:3]
    found = _PATH.search(wrapper)
    assert found is not None
    unset = re.match(r"unset -v ([\w ]+);", wrapper)
    for name in unset[1].split() if unset else ():
        command.env.pop(name, None)
    try:
        code = await shell.script(command, text)
    except ShellExit as end:
        code = end.code
    entries = [*command.env.items(), ("SKERRY_SESSION_TOKEN", found[1])]
    left = f"{command.cwd}\n\0" + "".join(f"{name}={value}\0" for name, value in entries)
    shell.files.put(found[0], left.encode("utf-8", "surrogateescape"), 0o600)
    return code


async def _code(shell: FakeShell, command: FakeCommand, args: Sequence[str]) -> int:
    return await shell.script(command, (await take_stdin(command, lambda: 0)).decode())


async def _git(shell: FakeShell, command: FakeCommand, args: Sequence[str]) -> int:
    """Says what git would be called with, and how many lines of secrets it was given."""
    args = args[2:]  # behind the script and its name
    secrets = await take_stdin(command, lambda: 0) if args[0] == "auth" else b""
    await command.write(1, f"{args[0]} {args[1]}: git {' '.join(args[2:])}\n{secrets.count(10)} lines\n".encode())
    return 0


async def _startup(shell: FakeShell, command: FakeCommand, args: Sequence[str]) -> int:
    return await shell.script(command, args[1])


FIXED: Mapping[str, FixedScript] = {SESSION: _session, OWN_DESCRIPTOR: _code, GIT: _git, AFRESH: _startup}
