"""`exec`, `run` and `shell`: a command's input, output and exit code are this program's.

Exit codes: the command's own; 128 + n after signal n; 124 after its deadline; 127 where its program was not found, 126
where that could not be run; 125 where Skerry itself failed; 130 after an interrupt. What runs it, on pipes or on a
terminal, is in `foreground` and `interactive`.
"""

import shlex
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skerry.cli.completion import complete_sandbox, complete_template
from skerry.cli.connection import client, find
from skerry.cli.interrupts import held
from skerry.cli.output import Format, OutputOption, failure, hint, local_failure
from skerry.cli.progress import ready
from skerry.cli.sandboxes import (
    CpuOption,
    EnvOption,
    FromOption,
    IdleOption,
    MemoryOption,
    NetworkOption,
    RestoreOption,
    beginning,
    check_template,
    parse_env,
)
from skerry.cli.words import PASS_ON, WithCommand, bare, complete_first, is_marked, split
from skerry.model.errors import Invalid, SkerryError

if TYPE_CHECKING:
    from skerry.sdk import Sandbox, Terminal

OWN_FAILURE = 125  # Skerry itself failed: not to be mistaken for the command's exit code
INTERPRETERS = {".py": "python3", ".sh": "sh", ".bash": "bash", ".js": "node", ".mjs": "node", ".rb": "ruby"}

InputOption = Annotated[bool, typer.Option("-i", "--stdin", help="Give it this program's standard input.")]
TerminalOption = Annotated[bool, typer.Option("-t", "--tty", help="Run it on a terminal; with -i, on this one.")]
TimeoutOption = Annotated[int | None, typer.Option("--timeout", help="Its deadline in seconds.")]
CwdOption = Annotated[str | None, typer.Option("-w", "--cwd", help="Working directory inside.")]
UserOption = Annotated[str | None, typer.Option("-u", "--user", help="User inside.")]
NamedTemplateOption = Annotated[  # -t is the terminal here
    str | None, typer.Option("--template", help="What it starts from.", autocompletion=complete_template)
]
EscapeOption = Annotated[bool, typer.Option("--escape/--no-escape", help="Whether ~. at a line's beginning leaves.")]


def register(app: typer.Typer) -> None:
    app.command("exec", cls=WithCommand, context_settings=PASS_ON)(execute)
    app.command("run", cls=WithCommand, context_settings=PASS_ON)(run)
    app.command("shell")(shell)


def execute(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[SANDBOX] -- COMMAND...",
            help="Id, name, label or beginning of the id; then the program and its arguments.",
            autocompletion=complete_first,
        ),
    ],
    env: EnvOption = None,
    cwd: CwdOption = None,
    user: UserOption = None,
    timeout: TimeoutOption = None,
    stdin: InputOption = False,
    tty: TerminalOption = False,
    escape: EscapeOption = True,
    output: OutputOption = Format.TEXT,
) -> None:
    """Run a command in a sandbox; its output and its exit code are this program's.

    Without -i its input is empty. With -it it runs on a terminal as if here (`~.` at a line's beginning leaves it
    running, `~?` tells more). The sandbox may be left out where `skerry use` chose one; `--` is needed then.
    """
    with own_failures(output), client() as server:
        word, command = split(words)
        given: dict[str, Any] = {"env": parse_env(env), "cwd": cwd, "user": user}
        _check_terminal(stdin=stdin, tty=tty, timeout=timeout, output=output)
        box = ready(server, find(server, word), output)
        if tty:
            code = _on_terminal(box, command, given, escape=escape)
        else:
            from skerry.cli.foreground import follow

            code = follow(box, command, output, {**given, "timeout_s": timeout}, with_stdin=stdin)
    raise typer.Exit(code)


def shell(
    sandbox: Annotated[
        str | None, typer.Argument(help="Left out: the one in use here.", autocompletion=complete_sandbox)
    ] = None,
    env: EnvOption = None,
    cwd: CwdOption = None,
    user: UserOption = None,
    attach: Annotated[
        str | None, typer.Option("--attach", metavar="TERMINAL", help="Go back to one that was left.")
    ] = None,
    escape: EscapeOption = True,
) -> None:
    """Open a shell in a sandbox, on this terminal.

    `~.` at a line's beginning leaves it running, `~?` tells more. A connection that breaks is taken up again.
    """
    from skerry.cli.interactive import require_terminal

    with own_failures(Format.TEXT), client() as server:
        require_terminal("A shell needs a terminal here. For one command: skerry exec SANDBOX -- COMMAND")
        box = ready(server, find(server, sandbox), Format.TEXT)
        given: dict[str, Any] = {"env": parse_env(env), "cwd": cwd, "user": user}
        code = _on_terminal(box, None, given, escape=escape, attach=attach)
    raise typer.Exit(code)


def run(
    words: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT [ARGS]... | -- COMMAND...", help="A script here, or what is inside."),
    ],
    template: NamedTemplateOption = None,
    memory: MemoryOption = None,
    cpu: CpuOption = None,
    network: NetworkOption = None,
    env: EnvOption = None,
    file: Annotated[
        list[str] | None,
        typer.Option("-f", "--file", metavar="LOCAL[:PATH]", help="Take a file or directory along; may be repeated."),
    ] = None,
    timeout: TimeoutOption = None,
    stdin: InputOption = False,
    tty: TerminalOption = False,
    from_snapshot: FromOption = None,
    restore_from: RestoreOption = None,
    idle_timeout: IdleOption = None,
    keep: Annotated[bool, typer.Option("--keep/--rm", help="Leave the sandbox afterwards, or destroy it.")] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Make a sandbox, run one command or one local script in it, and destroy it.

    `skerry run script.py arg` takes a local script along; `skerry run -- program arg` runs what is inside. Standard
    input is passed on where it is a pipe or a file, with -i always. Each --file goes to /workspace, or to PATH.
    """
    with own_failures(output), client() as server:
        check_template(template, from_snapshot)
        script, command = _script(words)
        stdin = stdin or not (tty or sys.stdin.isatty())
        _check_terminal(stdin=stdin, tty=tty, timeout=timeout, output=output)
        taken = [_taken(word) for word in file or []]
        given: dict[str, Any] = {"env": parse_env(env), **beginning(server, from_snapshot, restore_from)}
        given |= {"memory_mb": memory, "cpu_millis": cpu, "network": network, "idle_timeout_s": idle_timeout}
        # An interrupt while the sandbox is made waits for it: else nobody would know which one to destroy.
        with held() as interrupts:
            box = server.create(template, **given)
            try:
                with interrupts.released():
                    _take_along(box, script, taken)
                    code = _run_in(box, command, output, timeout=timeout, stdin=stdin, tty=tty)
            finally:
                if keep:
                    hint(f"Kept: {box.id}")
                else:
                    box.destroy()
    raise typer.Exit(code)


@contextmanager
def own_failures(output: Format) -> Generator[None]:
    """Tell our own failures, and give them their own exit code."""
    try:
        yield
    except SkerryError as error:
        failure(error, output)
        raise typer.Exit(OWN_FAILURE) from error
    except OSError as error:
        failure(local_failure(error), output)
        raise typer.Exit(OWN_FAILURE) from error


def _run_in(box: "Sandbox", command: list[str], output: Format, *, timeout: int | None, stdin: bool, tty: bool) -> int:
    if tty:
        return _on_terminal(box, command, {}, escape=False)
    from skerry.cli.foreground import follow

    return follow(box, command, output, {"timeout_s": timeout}, with_stdin=stdin)


def _on_terminal(
    box: "Sandbox", command: list[str] | None, given: dict[str, Any], *, escape: bool, attach: str | None = None
) -> int:
    from skerry.cli.interactive import converse, size

    cols, rows = size()

    def opened() -> "Terminal":
        if attach is not None:
            return box.terminals.get(attach)
        return box.terminals.open(command, cols=cols, rows=rows, **given)

    return converse(opened, escape=escape)


def _check_terminal(*, stdin: bool, tty: bool, timeout: int | None, output: Format) -> None:
    if not tty:
        return
    from skerry.cli.interactive import require_terminal

    if output is Format.JSON:
        raise Invalid("A terminal has no JSON: leave out -t, or -o json.", field="output")
    if timeout is not None:
        raise Invalid("A terminal has no deadline: leave out -t, or --timeout.", field="timeout")
    if not stdin:
        raise Invalid("Without -i nobody could type on it: say -it, or leave out -t.", field="tty")
    require_terminal("There is no terminal here: leave -t out, and give a command: skerry exec -i SANDBOX -- …")


def _script(words: list[str]) -> tuple[Path | None, list[str]]:
    """The script here, if the first word is one, and the command to run inside. After `--` none is looked for."""
    command = bare(words)
    if not command:
        raise Invalid("Give a script or a command, such as: skerry run -- echo hello", field="command")
    path = Path(command[0])
    if is_marked(words) or path.suffix not in INTERPRETERS:
        return None, command[1:] if not is_marked(words) and command[0] == "--" else command
    if not path.is_file():
        raise Invalid(
            f"There is no file {path} on this machine. What is inside is run with: skerry run --"
            f" {shlex.quote(command[0])} …"
        )
    return path, [INTERPRETERS[path.suffix], f"/workspace/{path.name}", *command[1:]]


def _taken(word: str) -> tuple[Path, str]:
    local, colon, inside = word.rpartition(":")
    if not colon or not local or Path(word).exists():
        local, inside = word, ""
    path = Path(local)
    if not path.exists():
        raise Invalid(f"There is no {path} on this machine.", field="file")
    return path, inside or "/workspace/"


def _take_along(box: "Sandbox", script: Path | None, taken: list[tuple[Path, str]]) -> None:
    from skerry.cli.copying import upload

    for path, inside in taken:
        upload(box, path, inside)
    if script is not None:
        box.files.write(f"/workspace/{script.name}", script.read_bytes(), mode="0755")
