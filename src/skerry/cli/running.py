"""`exec` and `run`: a command's output and exit code come through as they are."""

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.connection import client, find
from skerry.cli.interrupts import held
from skerry.cli.output import Format, OutputOption, ReaderGone, data_json, failure, hint, local_failure
from skerry.cli.sandboxes import CpuOption, EnvOption, MemoryOption, NetworkOption, TemplateOption, parse_env
from skerry.model.errors import Invalid, SkerryError

if TYPE_CHECKING:
    from skerry.sdk import CommandResult, Sandbox

OWN_FAILURE = 125  # Skerry itself failed: not to be mistaken for the command's exit code
STDIN_BYTES = 16 << 20

# What follows the first word belongs to the command, options too.
PASS_ON = {"allow_interspersed_args": False}
INTERPRETERS = {".py": "python3", ".sh": "sh", ".bash": "bash", ".js": "node", ".mjs": "node", ".rb": "ruby"}

CommandArgument = Annotated[list[str], typer.Argument(help="The program and its arguments; `--` may stand before.")]
StdinOption = Annotated[bool, typer.Option("-i", "--stdin", help="Give it this program's standard input (text).")]
TimeoutOption = Annotated[int | None, typer.Option("--timeout", help="Its deadline in seconds.")]


def register(app: typer.Typer) -> None:
    app.command("exec", context_settings=PASS_ON)(execute)
    app.command("run", context_settings=PASS_ON)(run)


def execute(
    sandbox: Annotated[str, typer.Argument(help="Id, name or the beginning of the id.")],
    command: CommandArgument,
    env: EnvOption = None,
    cwd: Annotated[str | None, typer.Option("-w", "--cwd", help="Working directory inside.")] = None,
    user: Annotated[str | None, typer.Option("-u", "--user", help="User inside.")] = None,
    timeout: TimeoutOption = None,
    stdin: StdinOption = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Run a command in a sandbox; its output, and its exit code, are this program's."""
    with _own_failures(output), client() as server:
        # Click takes `--` away in front of the first word only.
        command = command[1:] if command[0] == "--" else command
        box = find(server, sandbox)
        given: dict[str, object] = {"env": parse_env(env), "cwd": cwd, "user": user, "timeout_s": timeout}
        code = _follow(box, command, output, given, stdin)
    raise typer.Exit(code)


def run(
    context: typer.Context,
    command: CommandArgument,
    template: TemplateOption = None,
    memory: MemoryOption = None,
    cpu: CpuOption = None,
    network: NetworkOption = None,
    env: EnvOption = None,
    timeout: TimeoutOption = None,
    stdin: StdinOption = False,
    keep: Annotated[bool, typer.Option("--keep/--rm", help="Leave the sandbox afterwards, or destroy it.")] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Make a sandbox, run one command or one local script in it, and destroy it.

    `skerry run script.py arg` takes a local script along; `skerry run -- program arg` runs what is inside.
    """
    with _own_failures(output), client() as server:
        script = _script(command)
        content = None if script is None else script.read_bytes()
        given = parse_env(env)
        # An interrupt while the sandbox is made waits for it: else nobody would know which one to destroy.
        with held() as interrupts:
            box = server.create(template, memory_mb=memory, cpu_millis=cpu, network=network, env=given)
            try:
                with interrupts.released():
                    if script is not None and content is not None:
                        box.files.write(f"/workspace/{script.name}", content, mode="0755")
                        command = [INTERPRETERS[script.suffix], f"/workspace/{script.name}", *command[1:]]
                    code = _follow(box, command, output, {"timeout_s": timeout}, stdin)
            finally:
                if keep:
                    hint(f"Kept: {box.id}")
                else:
                    box.destroy()
    raise typer.Exit(code)


def _script(command: list[str]) -> Path | None:
    path = Path(command[0])
    # After `--` a word is never looked up on this machine.
    if "--" in sys.argv or path.suffix not in INTERPRETERS or not path.is_file():
        return None
    return path


def _follow(box: "Sandbox", command: list[str], output: Format, given: "dict[str, object]", with_stdin: bool) -> int:
    if with_stdin:
        given["stdin"] = _read_stdin()
    text = output is not Format.JSON
    with held() as interrupts:
        running = box.commands.start(command, **given)  # pyright: ignore[reportArgumentType]
        try:
            with interrupts.released():
                result = running.wait(on_stdout=_writer(1) if text else None, on_stderr=_writer(2) if text else None)
        except (KeyboardInterrupt, ReaderGone):
            # It is in the foreground: it ends with us, and with whoever reads its output.
            with suppress(SkerryError):
                running.kill()
            raise
    if not text:
        data_json(_as_json(result))
        return result.shell_code
    if result.exit_code is None or result.lost_bytes:
        lost = f" {result.lost_bytes} bytes of output were beyond the server's cap." if result.lost_bytes else ""
        hint(f"skerry: the command {result.ending}.{lost}")
    return result.shell_code


def _writer(descriptor: int) -> Callable[[bytes], None]:
    """Writes bytes to a descriptor as they are, all of them, at once."""

    def write(data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(descriptor, view) :]
        except BrokenPipeError as error:
            raise ReaderGone from error

    return write


@contextmanager
def _own_failures(output: Format) -> Generator[None]:
    try:
        yield
    except SkerryError as error:
        failure(error, output)
        raise typer.Exit(OWN_FAILURE) from error
    except OSError as error:
        failure(local_failure(error), output)
        raise typer.Exit(OWN_FAILURE) from error


def _read_stdin() -> str:
    data = sys.stdin.buffer.read(STDIN_BYTES + 1)
    if len(data) > STDIN_BYTES:
        raise Invalid("Standard input is longer than 16 MiB: `skerry cp` it in, and redirect inside.", field="stdin")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Invalid(
            "Standard input is not UTF-8 text: `skerry cp` it in, and redirect inside.", field="stdin"
        ) from None


def _as_json(result: "CommandResult") -> dict[str, object]:
    return {
        "id": result.id,
        "status": result.status,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "reason": result.reason,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "truncated": result.truncated,
        "duration_ms": result.duration_ms,
    }
