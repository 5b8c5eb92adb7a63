"""What commands print, on disk: one directory a command, addressed by offset, capped, following the writer live.

    <spool>/<command id>/output, index, …   what it printed, see `spool_files`
    <spool>/<command id>/exit.json          how the command ended; written last

Nothing is synced: files survive the death of this process, and commands do not survive the death of the host. A command
whose head is kept costs no file until it prints or has ended. Knows nothing of sandboxes beyond their id, and nothing
of sbxd.
"""

import errno
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, nullcontext, suppress
from pathlib import Path

from skerry.guest.shapes import exit_from, exit_to
from skerry.model.command import CommandCause, CommandEvent, Exit, Keep, Lost
from skerry.model.errors import Invalid, NotFound
from skerry.model.ids import CommandId, SandboxId, is_id
from skerry.node.spool_audience import GRACE_S, ignored
from skerry.node.spool_files import read_header, starts_in
from skerry.node.spool_quota import SANDBOX_CAP_BYTES, Quota
from skerry.node.spool_reader import Reader
from skerry.node.spool_writer import Writer


class Spool:
    """The spools of all commands of one node. Holds in memory only those that run, or whose end is not on disk yet."""

    def __init__(
        self,
        directory: Path,
        cap_bytes: int,
        keep_s: float,
        grace_s: float = GRACE_S,
        sandbox_cap_bytes: int = SANDBOX_CAP_BYTES,
        free_bytes: Callable[[], int] | None = None,
    ) -> None:
        self._directory = directory
        self._root = os.fspath(directory)
        self._cap_bytes = cap_bytes
        self._keep_s = keep_s
        self._grace_s = grace_s  # how long an unread output waits for a reader
        self._live: dict[CommandId, Writer] = {}
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._quota = Quota(directory, sandbox_cap_bytes, free_bytes)

    def __contains__(self, command_id: CommandId) -> bool:
        """Whether it runs or has ended. Output alone, of a start that was interrupted, is no command yet."""
        if command_id in self._live:
            return True
        # Text: each command asks this once, and a path made of objects costs as much as the look.
        return is_id(command_id, "cmd") and os.path.exists(f"{self._root}/{command_id}/exit.json")  # noqa: PTH110

    def live(self, command_id: CommandId) -> Writer | None:
        return self._live.get(command_id)

    def live_of(self, sandbox_id: SandboxId) -> dict[CommandId, Writer]:
        return {key: writer for key, writer in self._live.items() if writer.sandbox_id == sandbox_id}

    def start(self, sandbox_id: SandboxId, command_id: CommandId, keep: Keep = Keep.HEAD) -> Writer:
        """The writer of a command: new, or, after this process was killed, going on at `end` as it was begun."""
        if not is_id(command_id, "cmd"):
            raise Invalid(f"'{command_id}' is not a command's id.", field="id")
        if command_id not in self._live:
            path, share_of = self._directory / command_id, self._quota.share
            writer = Writer(path, sandbox_id, self._cap_bytes, share_of, keep, self._grace_s)
            self._quota.forget(command_id)  # what there is counts as the writer's
            writer.recover()
            self._live[command_id] = writer
        return self._live[command_id]

    def discard(self, command_id: CommandId) -> None:
        """Forget a command that did not start."""
        writer = self._live.pop(command_id, None)
        if writer is not None:
            writer.finish(Exit(None, None, False, 0, 0, CommandCause.NOT_STARTED))
            writer.discard()

    def keep_exit(self, command_id: CommandId) -> None:
        """Put the end of a finished command on disk and let go of its writer. Blocks on the disk: call it in a thread.

        Raises:
            OSError: It could not be written; the end is still held in memory, so call again.
        """
        writer = self._live.get(command_id)
        if writer is None or writer.exit is None:
            return
        told = {"sandbox": writer.sandbox_id, "exit": exit_to(writer.exit)}
        _put(os.fspath(self._directory / command_id), json.dumps(told).encode())

    def let_go(self, command_id: CommandId) -> None:
        """Drop the writer of a command whose end is on disk."""
        writer = self._live.pop(command_id, None)
        if writer is not None:
            writer.close()
            self._quota.idle(command_id, *writer.charge)

    def check_owner(self, command_id: CommandId, sandbox_id: SandboxId) -> None:
        """Raises NotFound unless the command is one of this sandbox."""
        writer = self._live.get(command_id)
        if (writer.sandbox_id if writer else self._ended(command_id)[0]) != sandbox_id:
            raise _unknown(command_id)

    def exit_of(self, command_id: CommandId) -> Exit | None:
        """How it ended; None while it runs.

        Raises:
            NotFound: No such command here.
        """
        if (writer := self._live.get(command_id)) is not None:
            return writer.exit
        return self._ended(command_id)[1]

    async def follow(
        self, sandbox_id: SandboxId, command_id: CommandId, offset: int = 0, *, follow: bool = True
    ) -> AsyncIterator[CommandEvent]:
        """The output from `offset` on, as it comes, then the Exit. Any number at once; a slow one holds up nobody.

        Without `follow` only what there is now, and no Exit when it still runs.

        Raises:
            NotFound: This sandbox has, or had, no such command, or its output is no longer kept.
        """
        writer = self._live.get(command_id)
        owner, exit = (writer.sandbox_id, None) if writer else self._ended(command_id)
        if owner != sandbox_id:
            raise _unknown(command_id)
        reader = Reader(self._directory / command_id, offset)
        reading = writer.reading(offset) if writer is not None and follow else nullcontext(ignored)
        with closing(reader), reading as reached:
            while True:
                ended = writer.exit if writer else exit
                kept = writer.kept if writer else None
                while (batch := await reader.next(kept)) is not None:
                    yield batch
                    reached(reader.offset)
                if ended is not None:
                    break
                if not follow:
                    return
                if writer is not None and writer.kept == kept and writer.exit is None:
                    await writer.changed()
            if ended.offset > reader.offset:
                yield Lost(reader.offset, ended.offset - reader.offset)
            yield ended

    def _ended(self, command_id: CommandId) -> tuple[SandboxId, Exit]:
        if not is_id(command_id, "cmd"):
            raise _unknown(command_id)
        try:
            told = json.loads((self._directory / command_id / "exit.json").read_bytes())
        except (FileNotFoundError, ValueError) as error:
            raise _unknown(command_id) from error
        return SandboxId(told["sandbox"]), exit_from(told["exit"])

    def unfinished(self) -> Iterator[tuple[CommandId, SandboxId]]:
        """Commands with output and without an end that nobody writes, with their sandbox."""
        for entry in sorted(self._directory.iterdir()):
            command_id = CommandId(entry.name)
            if command_id in self._live or not is_id(entry.name, "cmd") or (entry / "exit.json").exists():
                continue
            headers = (read_header(entry, start) for start in reversed(starts_in(entry)))
            if (header := next((header for header in headers if header is not None), None)) is not None:
                yield command_id, header.sandbox_id

    def sweep(self, now_s: float) -> int:
        """Remove what ended longer ago than outputs are kept, and what has neither output nor end; how many. Blocks."""
        removed = 0
        for entry in self._directory.iterdir():
            if CommandId(entry.name) in self._live:
                continue
            with suppress(FileNotFoundError):
                if now_s - _touched_s(entry) > self._keep_s:
                    shutil.rmtree(entry, ignore_errors=True)
                    self._quota.forget(CommandId(entry.name))
                    removed += 1
        return removed


def _touched_s(entry: Path) -> float:
    """When a spool was last written to. Of one without an end the directory alone may be as old as its command."""
    touched_s = entry.stat().st_mtime
    if not (entry / "exit.json").exists():
        touched_s = max([touched_s, *(file.stat().st_mtime for file in entry.iterdir())])
    return touched_s


def _put(directory: str, exit: bytes) -> None:
    # Once for every command, so by plain system calls: with pathlib it costs twice as much.
    with suppress(FileExistsError):
        os.mkdir(directory, 0o700)  # noqa: PTH102
    fd = os.open(f"{directory}/exit.partial", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        written = os.write(fd, exit)
    finally:
        os.close(fd)
    if written < len(exit):
        raise OSError(errno.ENOSPC, "the end of a command was written in part only")
    os.rename(f"{directory}/exit.partial", f"{directory}/exit.json")  # noqa: PTH104


def _unknown(command_id: CommandId) -> NotFound:
    return NotFound(f"No output of command '{command_id}' is kept here. It is unknown, or older than outputs are kept.")
