"""`create`, `ls`, `get`, `label`, `rm`."""

import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.completion import complete_sandbox, complete_snapshot, complete_template
from skerry.cli.connection import client, find, matching
from skerry.cli.interrupts import telling
from skerry.cli.output import Format, OutputOption, data, data_json, failure, hint, members, table
from skerry.model.errors import Invalid, NotFound, SkerryError

if TYPE_CHECKING:
    from skerry.sdk import Sandbox, Skerry

TemplateOption = Annotated[
    str | None, typer.Option("-t", "--template", help="What it starts from.", autocompletion=complete_template)
]
MemoryOption = Annotated[int | None, typer.Option("--memory", help="Memory limit in MB.")]
CpuOption = Annotated[int | None, typer.Option("--cpu", help="CPU limit in thousandths of a core.")]
DiskOption = Annotated[int | None, typer.Option("--disk", help="Disk limit in MB.")]
NetworkOption = Annotated[str | None, typer.Option("--network", help="bridge (outbound) or none.")]
EnvOption = Annotated[list[str] | None, typer.Option("-e", "--env", help="NAME=VALUE; may be repeated.")]
LabelOption = Annotated[list[str] | None, typer.Option("-l", "--label", help="KEY=VALUE; may be repeated.")]
SandboxArgument = Annotated[
    str | None,
    typer.Argument(
        help="Id, name, label (KEY=VALUE) or beginning of the id. Left out: the one in use here.",
        autocompletion=complete_sandbox,
    ),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from-snapshot",
        metavar="SNAPSHOT",
        help="Begin with a snapshot's files, template and configuration: its id or name.",
        autocompletion=complete_snapshot,
    ),
]
RestoreOption = Annotated[
    str | None,
    typer.Option(
        "--restore-from",
        metavar="SANDBOX",
        help="Begin with the files of another sandbox, as they are now.",
        autocompletion=complete_sandbox,
    ),
]
IdleOption = Annotated[
    int | None,
    typer.Option("--idle-timeout", min=0, metavar="SECONDS", help="Stop it after so long without use; 0: never."),
]
SHOWN_LABELS = 60  # characters of them in a list
SPARE = (
    "RUNTIME",
    "LABELS",
    "TEMPLATE",
    "RECLAIM",
    "AGE",
)  # columns that a narrow terminal does without, in this order


def register(app: typer.Typer) -> None:
    app.command()(create)
    app.command("ls")(list_sandboxes)
    app.command()(get)
    app.command()(label)
    app.command()(rm)


def create(
    template: TemplateOption = None,
    name: Annotated[str | None, typer.Option("-n", "--name", help="A name for people; several may have it.")] = None,
    memory: MemoryOption = None,
    cpu: CpuOption = None,
    disk: DiskOption = None,
    network: NetworkOption = None,
    env: EnvOption = None,
    label: LabelOption = None,
    timeout: Annotated[int | None, typer.Option("--timeout", help="Its commands' default deadline in seconds.")] = None,
    startup: Annotated[str | None, typer.Option("--startup", help="A shell line that runs when it is up.")] = None,
    from_snapshot: FromOption = None,
    restore_from: RestoreOption = None,
    idle_timeout: IdleOption = None,
    use: Annotated[bool, typer.Option("--use", help="And let commands in this directory mean it.")] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Make a sandbox and print its id."""
    check_template(template, from_snapshot)
    with client() as server, telling("The sandbox may have been made all the same: `skerry ls`"):
        box = server.create(
            template,
            name=name,
            memory_mb=memory,
            cpu_millis=cpu,
            disk_mb=disk,
            network=network,
            env=parse_env(env),
            metadata=parse_pairs(label, "label") or None,
            timeout_s=timeout,
            startup_command=startup,
            idle_timeout_s=idle_timeout,
            **beginning(server, from_snapshot, restore_from),
        )
        if use:
            from skerry.cli import context

            context.use(box.id, server.url)
    if output is Format.JSON:
        data_json(as_json(box))
    else:
        data(box.id)
        named = "" if use else f"{pasted(box.name, box.id)} "
        hint(f"{box.info.template} on {box.runtime}. Next: skerry exec {named}-- echo hello")


def pasted(name: str | None, id: str) -> str:
    """A word of a shell for what has this name and id: the name, where that is no option and shows as it is."""
    shows = name and name.isprintable() and name.strip() and name[0] != "-"
    return shlex.quote(name) if name and shows else id


def list_sandboxes(
    name: Annotated[str | None, typer.Option("-n", "--name", help="Only those of this name.")] = None,
    label: Annotated[
        list[str] | None, typer.Option("-l", "--label", help="KEY or KEY=VALUE, all of them; may be repeated.")
    ] = None,
    status: Annotated[list[str] | None, typer.Option("--status", help="Only of this status; may be repeated.")] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Ids alone.")] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """List your sandboxes, newest first. RECLAIM says when one is stopped that nobody uses until then."""
    wanted = [one.partition("=") for one in label or []]
    with client() as server:
        asked = {key: value if equals else None for key, equals, value in wanted}
        boxes = list(server.list(name=name, metadata=asked or None, status=status))
    if output is Format.JSON:
        data_json([as_json(box) for box in boxes])
        return
    if quiet:
        for box in boxes:
            data(box.id)
        return
    rows = [
        [
            box.id,
            box.name or "-",
            box.status,
            box.info.template,
            box.runtime or "-",
            age(box.info.created_at),
            _reclaimed(box),
            _labels(box),
        ]
        for box in boxes
    ]
    table(["ID", "NAME", "STATUS", "TEMPLATE", "RUNTIME", "AGE", "RECLAIM", "LABELS"], rows, SPARE)
    for box in boxes:
        if box.status == "stopping" and box.info.message:
            hint(f"{box.id}: {box.info.message}")


def get(sandbox: SandboxArgument = None, output: OutputOption = Format.TEXT) -> None:
    """Show one sandbox."""
    with client() as server:
        box = find(server, sandbox)
    if output is Format.JSON:
        data_json(as_json(box))
    else:
        members(as_json(box))


def label(
    sandbox: Annotated[str, typer.Argument(help="Id, name or label.", autocompletion=complete_sandbox)],
    labels: Annotated[list[str], typer.Argument(help="KEY=VALUE sets one, KEY- takes one away.")],
    output: OutputOption = Format.TEXT,
) -> None:
    """Set labels of a sandbox, or take them away. Of two that change labels at once the last one counts."""
    with client() as server:
        box = find(server, sandbox)
        metadata = dict(box.info.metadata)
        for one in labels:
            if one.endswith("-") and "=" not in one:
                metadata.pop(one[:-1], None)
            else:
                metadata |= parse_pairs([one], "label")
        box.update(metadata=metadata)
    if output is Format.JSON:
        data_json(as_json(box))
    else:
        data(box.id)


def rm(
    sandboxes: Annotated[
        list[str], typer.Argument(help="Ids, names, labels or beginnings of ids.", autocompletion=complete_sandbox)
    ],
    every: Annotated[bool, typer.Option("--all", help="Where a word means several sandboxes: all of them.")] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Destroy sandboxes and their files, for good. The one in use here is not meant unless it is named."""
    gone: list[str] = []
    failed: SkerryError | None = None
    with client() as server:
        for word in sandboxes:
            try:
                for box in _meant(server, word, every=every):
                    box.destroy()
                    gone.append(box.id)
            except SkerryError as error:
                failure(error, output)
                failed = error
    if output is Format.JSON:
        data_json({"destroyed": gone})
    else:
        for one in gone:
            data(one)
    if failed is not None:
        raise typer.Exit(1)


def parse_env(pairs: list[str] | None) -> dict[str, str] | None:
    """`NAME=VALUE` words as a mapping. Raises Invalid."""
    return parse_pairs(pairs, "env") or None


def parse_pairs(pairs: list[str] | None, field: str) -> dict[str, str]:
    """`NAME=VALUE` words as a mapping; the last one of a name counts. Raises Invalid."""
    found: dict[str, str] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise Invalid(f"'{pair}' is not NAME=VALUE.", field=field)
        found[name] = value
    return found


def as_json(box: "Sandbox") -> dict[str, object]:
    return box.info.model_dump(mode="json")


def _meant(server: "Skerry", word: str, *, every: bool) -> "list[Sandbox]":
    if not every:
        return [find(server, word, ended_too=True)]  # what cannot be undone is not done by a guess
    found = matching(server, word)
    if not found:
        raise NotFound(f"No sandbox has the name, label or id '{word}'. `skerry ls` lists yours.", field="sandbox")
    return found


def _labels(box: "Sandbox") -> str:
    told = ",".join(f"{key}={value}" for key, value in box.info.metadata.items() if isinstance(value, str | int))
    return told if len(told) <= SHOWN_LABELS else told[: SHOWN_LABELS - 3] + "..."


def age(since: datetime) -> str:
    """How long ago, roughly."""
    return _span((datetime.now(UTC) - since).total_seconds())


def check_template(template: str | None, snapshot: str | None) -> None:
    """Raises Invalid where both are asked for: the wish for a template would be ignored."""
    if template is not None and snapshot is not None:
        raise Invalid(
            "A snapshot brings its template along: leave out --template, or --from-snapshot.", field="template"
        )


def beginning(server: "Skerry", snapshot: str | None, sandbox: str | None) -> dict[str, str | None]:
    """What a new sandbox begins with, from the words for it: as `create` of the client takes it."""
    return {
        "snapshot_id": None if snapshot is None else server.snapshots.find(snapshot).id,
        "restore_from": None if sandbox is None else find(server, sandbox).id,
    }


def _reclaimed(box: "Sandbox") -> str:
    """When it is reclaimed for idleness, or what it is that keeps it."""
    info = box.info
    if info.kept_awake_by:
        return f"not: {','.join(info.kept_awake_by)}"
    if info.reclaim_at is not None:
        return f"in {_span((info.reclaim_at - datetime.now(UTC)).total_seconds())}"
    return "never" if info.status in ("ready", "active") else "-"


def _span(seconds: float) -> str:
    whole = max(int(seconds), 0)
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if whole >= length:
            return f"{whole // length}{unit}"
    return f"{whole}s"
