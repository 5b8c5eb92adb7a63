"""`git`: clone, pull and push in a sandbox, with a token for that one operation.

A token comes from a variable or from standard input; never an argument, which every process of the machine could read.
"""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.connection import client, find
from skerry.cli.environment import SandboxOption
from skerry.cli.output import Format, OutputOption
from skerry.cli.running import TimeoutOption, own_failures
from skerry.model.errors import Invalid

if TYPE_CHECKING:
    from skerry.sdk import CommandResult

MOST_TOKEN_BYTES = 4096
USERNAME = "x-access-token"
WORKSPACE = "/workspace"

BranchOption = Annotated[str | None, typer.Option("-b", "--branch", help="Left out: git's own choice.")]
RemoteOption = Annotated[str | None, typer.Option("--remote", help="Left out: git's own choice.")]
PathArgument = Annotated[str, typer.Argument(help="The repository inside.")]
TokenEnvOption = Annotated[
    str | None, typer.Option("--token-env", metavar="NAME", help="The variable here that holds the token.")
]
TokenStdinOption = Annotated[
    bool, typer.Option("--token-stdin", help="Ask for the token, or read it from standard input.")
]
UsernameOption = Annotated[str, typer.Option("--username", help="Who the token says it is from.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="git in a sandbox, with a token that leaves no trace there.", no_args_is_help=True, rich_markup_mode=None
    )
    group.command()(clone)
    group.command()(pull)
    group.command()(push)
    app.add_typer(group, name="git")


def clone(
    url: Annotated[str, typer.Argument(help="Where from.")],
    path: Annotated[str | None, typer.Argument(help="Where to, inside. Left out: named after it.")] = None,
    sandbox: SandboxOption = None,
    branch: BranchOption = None,
    depth: Annotated[int | None, typer.Option("--depth", help="Only so many commits.")] = None,
    token_env: TokenEnvOption = None,
    token_stdin: TokenStdinOption = False,
    username: UsernameOption = USERNAME,
    timeout: TimeoutOption = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Clone a repository. What git says and its exit code are this program's; 125 where Skerry itself failed."""
    with own_failures(output), client() as server:
        token = _token(token_env, ask=token_stdin)
        box = find(server, sandbox)
        result = box.git.clone(url, path, branch=branch, depth=depth, token=token, username=username, timeout_s=timeout)
        code = _shown(result, output)
    raise typer.Exit(code)


def pull(
    path: PathArgument = WORKSPACE,
    sandbox: SandboxOption = None,
    remote: RemoteOption = None,
    branch: BranchOption = None,
    token_env: TokenEnvOption = None,
    token_stdin: TokenStdinOption = False,
    username: UsernameOption = USERNAME,
    timeout: TimeoutOption = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Pull into a repository. As `git clone` in all else."""
    with own_failures(output), client() as server:
        token = _token(token_env, ask=token_stdin)
        box = find(server, sandbox)
        result = box.git.pull(path, remote=remote, branch=branch, token=token, username=username, timeout_s=timeout)
        code = _shown(result, output)
    raise typer.Exit(code)


def push(
    path: PathArgument = WORKSPACE,
    sandbox: SandboxOption = None,
    remote: RemoteOption = None,
    branch: BranchOption = None,
    upstream: Annotated[bool, typer.Option("-u", "--set-upstream", help="And let the branch follow it.")] = False,
    token_env: TokenEnvOption = None,
    token_stdin: TokenStdinOption = False,
    username: UsernameOption = USERNAME,
    timeout: TimeoutOption = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Push from a repository. As `git clone` in all else."""
    with own_failures(output), client() as server:
        token = _token(token_env, ask=token_stdin)
        box = find(server, sandbox)
        result = box.git.push(
            path,
            remote=remote,
            branch=branch,
            set_upstream=upstream,
            token=token,
            username=username,
            timeout_s=timeout,
        )
        code = _shown(result, output)
    raise typer.Exit(code)


def _shown(result: "CommandResult", output: Format) -> int:
    from skerry.cli.foreground import ended

    return ended(result, output)


def _token(variable: str | None, *, ask: bool) -> str | None:
    """None: none was offered.

    Raises:
        Invalid: Two were, or there is nothing where it should be.
    """
    if variable is not None and ask:
        raise Invalid("Give --token-env or --token-stdin, not both.", field="token")
    if variable is not None:
        token = os.environ.get(variable)
        # The word itself is not repeated: it may be the token, given where a name is wanted.
        where = "the variable that --token-env names: it is not set here, or empty"
    elif ask:
        token, where = _asked(), "standard input"
    else:
        return None
    if not token:
        raise Invalid(f"There is no token in {where}.", field="token")
    return token


def _asked() -> str:
    """From a prompt that shows nothing, or the first line of standard input."""
    if sys.stdin.isatty():
        import getpass

        try:
            return getpass.getpass("Token: ").strip()
        except EOFError:
            return ""
    return sys.stdin.buffer.readline(MOST_TOKEN_BYTES + 1).decode("utf-8", "replace").strip()
