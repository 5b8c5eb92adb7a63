"""`create`, `ls`, `get`, `rm`."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.connection import client, find
from skerry.cli.output import Format, OutputOption, data, data_json, hint, printable, table
from skerry.model.errors import Invalid, SkerryError

if TYPE_CHECKING:
    from skerry.sdk import Sandbox

TemplateOption = Annotated[str | None, typer.Option("-t", "--template", help="What it starts from.")]
MemoryOption = Annotated[int | None, typer.Option("--memory", help="Memory limit in MB.")]
CpuOption = Annotated[int | None, typer.Option("--cpu", help="CPU limit in thousandths of a core.")]
DiskOption = Annotated[int | None, typer.Option("--disk", help="Disk limit in MB.")]
NetworkOption = Annotated[str | None, typer.Option("--network", help="bridge (outbound) or none.")]
EnvOption = Annotated[list[str] | None, typer.Option("-e", "--env", help="NAME=VALUE; may be repeated.")]


def register(app: typer.Typer) -> None:
    app.command()(create)
    app.command("ls")(list_sandboxes)
    app.command()(get)
    app.command()(rm)


def create(
    template: TemplateOption = None,
    name: Annotated[str | None, typer.Option("-n", "--name", help="A name for people; several may have it.")] = None,
    memory: MemoryOption = None,
    cpu: CpuOption = None,
    disk: DiskOption = None,
    network: NetworkOption = None,
    env: EnvOption = None,
    timeout: Annotated[int | None, typer.Option("--timeout", help="Its commands' default deadline in seconds.")] = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Make a sandbox and print its id."""
    with client() as server:
        box = server.create(
            template,
            name=name,
            memory_mb=memory,
            cpu_millis=cpu,
            disk_mb=disk,
            network=network,
            env=parse_env(env),
            timeout_s=timeout,
        )
    if output is Format.JSON:
        data_json(as_json(box))
    else:
        data(box.id)
        hint(f"{box.info.template} on {box.runtime}. Next: skerry exec {box.name or box.id} -- echo hello")


def list_sandboxes(output: OutputOption = Format.TEXT) -> None:
    """List your sandboxes, newest first."""
    with client() as server:
        boxes = server.list()
    if output is Format.JSON:
        data_json([as_json(box) for box in boxes])
        return
    rows = [
        [box.id, box.name or "-", box.status, box.info.template, box.runtime or "-", _age(box.info.created_at)]
        for box in boxes
    ]
    table(["ID", "NAME", "STATUS", "TEMPLATE", "RUNTIME", "AGE"], rows)


def get(sandbox: str, output: OutputOption = Format.TEXT) -> None:
    """Show one sandbox, given by id, name or the beginning of its id."""
    with client() as server:
        box = find(server, sandbox)
    shown = as_json(box)
    if output is Format.JSON:
        data_json(shown)
        return
    for name, value in shown.items():
        if value not in (None, {}, []):
            data(f"{name:<16} {printable(str(value))}")


def rm(
    sandboxes: Annotated[list[str], typer.Argument(help="Ids, names or beginnings of ids.")],
    output: OutputOption = Format.TEXT,
) -> None:
    """Destroy sandboxes and their files, for good."""
    gone: list[str] = []
    failed: SkerryError | None = None
    with client() as server:
        for word in sandboxes:
            try:
                box = find(server, word)
                box.destroy()
            except SkerryError as error:
                hint(f"skerry: {error.message}")
                failed = error
            else:
                gone.append(box.id)
    if output is Format.JSON:
        data_json({"destroyed": gone})
    else:
        for one in gone:
            data(one)
    if failed is not None:
        raise typer.Exit(1)


def parse_env(pairs: list[str] | None) -> dict[str, str] | None:
    """`NAME=VALUE` words as a mapping. Raises Invalid."""
    if not pairs:
        return None
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise Invalid(f"'{pair}' is not NAME=VALUE.", field="env")
        found[name] = value
    return found


def as_json(box: "Sandbox") -> dict[str, object]:
    return box.info.model_dump(mode="json")


def _age(since: datetime) -> str:
    seconds = max(int((datetime.now(UTC) - since).total_seconds()), 0)
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
