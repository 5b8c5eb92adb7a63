"""`login`, `logout`, `use`: which server, with which key, and which sandbox a directory stands for.

A key is asked for or read from standard input; never an argument, which every process of the machine could read.
"""

import os
import sys
from typing import Annotated
from urllib.parse import urlsplit

import typer

from skerry.cli import context, logins
from skerry.cli.completion import complete_sandbox
from skerry.cli.connection import client, find
from skerry.cli.output import Format, OutputOption, data, data_json, hint
from skerry.model.errors import Invalid, Refused

MOST_KEY_BYTES = 4096


def register(app: typer.Typer) -> None:
    app.command()(login)
    app.command()(logout)
    app.command()(use)


def login(
    url: Annotated[str, typer.Argument(help="The server's address, such as https://skerry.example.org.")],
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Send the key over plain HTTP to another machine.")
    ] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Keep a server's address and key for later commands. The key is asked for, or read from standard input.

    Kept in ~/.config/skerry/login.json, which only you can read. Several servers may be kept: the last one is used, and
    logging in to one again needs no key where standard input is empty.
    """
    from skerry.sdk import Skerry
    from skerry.sdk.settings import is_loopback, resolve

    address, _ = resolve(url, "any")
    if "@" in urlsplit(address).netloc:
        raise Invalid("Leave user and password out of the address: the key says who you are.", field="url")
    if address.startswith("http:") and not is_loopback(address) and not insecure:
        raise Refused(
            f"{address} is plain HTTP: everybody on the way could read your key. Use https://, a tunnel to this"
            " machine, or say --insecure.",
            field="url",
        )
    key = _key() or logins.key_of(address)
    if not key:
        raise Invalid("No key was given. Type it when asked, or: skerry login URL < file-with-the-key", field="key")
    with Skerry(address, key) as server:
        me = server.me()
    path = logins.keep(address, key)
    if output is Format.JSON:
        data_json({"server": address, "account": me.id, "name": me.name, "file": str(path)})
        return
    data(f"{address} as {me.name or me.id}")
    for name in ("SKERRY_URL", "SKERRY_API_KEY"):
        if os.environ.get(name):
            hint(f"skerry: {name} is set, and goes before this login while it is.")


def logout(
    url: Annotated[str | None, typer.Argument(help="Left out: the server that is used now.")] = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Forget a server's key on this machine. The key itself stays valid."""
    address = url.rstrip("/") if url is not None else logins.current()
    gone = address is not None and logins.forget(address)
    if output is Format.JSON:
        data_json({"server": address, "forgotten": gone})
    elif not gone:
        hint(f"skerry: not logged in{f' to {address}' if address else ''}.")
    else:
        data(str(address))


def use(
    sandbox: Annotated[
        str | None,
        typer.Argument(help="Left out: say which one is in use here.", autocompletion=complete_sandbox),
    ] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Take this directory's choice away.")] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Let commands in this directory, and below it, leave the sandbox out: this one is meant.

    It is written down in the file `.skerry` here (sandbox and server, no key), which counts for you alone.
    """
    if forget:
        gone = context.forget()
        if output is Format.JSON:
            data_json({"forgotten": gone})
        elif not gone:
            hint("skerry: no sandbox is in use by this very directory.")
        return
    if sandbox is None:
        here = context.current()
        if output is Format.JSON:
            told = None if here is None else {"sandbox": here.sandbox_id, "server": here.server}
            data_json(None if told is None or here is None else {**told, "directory": str(here.directory)})
        elif here is None:
            hint("skerry: no sandbox is in use here. Choose one: skerry use SANDBOX")
        else:
            data(here.sandbox_id)
        return
    with client() as server:
        box = find(server, sandbox)
        path = context.use(box.id, server.url)
    if output is Format.JSON:
        data_json({"sandbox": box.id, "server": server.url, "directory": str(path.parent)})
    else:
        data(box.id)


def _key() -> str:
    """From a prompt that shows nothing, or the first line of standard input."""
    if sys.stdin.isatty():
        import getpass

        try:
            return getpass.getpass("API key: ").strip()
        except EOFError:
            return ""
    return sys.stdin.buffer.readline(MOST_KEY_BYTES).decode("ascii", "replace").strip()
