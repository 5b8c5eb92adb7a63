"""A worker: `python -m skerry.blobs.worker` does the one job that it reads from stdin, and ends.

A process of its own because the work fills cores for seconds, meets hostile trees, and has to be ended at any moment.
It has few privileges, yields to the sandboxes, and dies with the node.
"""

import errno
import gc
import os
import sys
import time
import traceback
from pathlib import Path

from skerry.blobs import isolation
from skerry.blobs.capture import Vaulted, archive_tree
from skerry.blobs.job import DONE, Job, decode_job, encode_error, encode_moved, encode_swept
from skerry.blobs.keys import Keys
from skerry.blobs.restore import restore_tree
from skerry.blobs.store import open_objects
from skerry.blobs.sweep import sweep_vault
from skerry.model.capture import Moved, Vault
from skerry.model.errors import SkerryError, TooBusy, Unavailable
from skerry.model.ids import ArchiveId, VaultId

_REPORT_S = 0.2
_FULL = (errno.ENOSPC, errno.EDQUOT)


def main() -> int:
    isolation.keep_to_itself()
    job = decode_job(sys.stdin.buffer.read())
    isolation.die_with(job.parent_pid)
    isolation.yield_to_others(waited_for=job.verb == "fetch")
    isolation.keep_only(isolation.WRITING if job.verb == "fetch" else isolation.READING)
    os.umask(0o077)
    gc.disable()  # millions of small objects, none of them in a cycle, and the process ends with the job
    try:
        _do(job)
    except SkerryError as error:
        _say(encode_error(error))
        return 1
    except OSError as error:
        _say(encode_error(_translated(job, error)))
        return 1
    except Exception:  # noqa: BLE001 — a fault of ours: the log has the whole of it, the node a sentence
        traceback.print_exc()
        _say(encode_error(Unavailable(f"The {job.verb} failed by a fault of Skerry's; the node's log has it.")))
        return 1
    _say(DONE)
    return 0


def _do(job: Job) -> None:
    keys = Keys(Vault(VaultId(job.vault_id), bytes.fromhex(job.vault_key)))
    vaulted = Vaulted(open_objects(job.place), keys, Path(job.cache_dir))
    report = _Report()
    if job.verb == "archive":
        made = archive_tree(
            vaulted,
            Path(job.tree),
            ArchiveId(job.archive_id),
            captured_at_ns=job.captured_at_ns,
            cache_name=job.cache_name,
            progress=report,
        )
        _say(encode_moved(Moved(made.size_bytes, made.size_bytes, made.stored_bytes, made)))
    elif job.verb == "fetch":
        restore_tree(vaulted, Path(job.tree), ArchiveId(job.archive_id), cache_name=job.cache_name, progress=report)
        report.flush()
    else:
        keep = [ArchiveId(one) for one in job.keep]
        _say(encode_swept(sweep_vault(vaulted, keep, older_than_s=job.older_than_s, dry=job.dry)))


class _Report:
    """Tells how far it is, a few times a second."""

    def __init__(self) -> None:
        self._due = 0.0
        self._last: tuple[int, int | None, int] = (0, None, 0)

    def __call__(self, done: int, total: int | None, sent: int) -> None:
        now = time.monotonic()
        if now >= self._due:
            self._due = now + _REPORT_S
            _say(encode_moved(Moved(done, total, sent)))
        self._last = (done, total, sent)

    def flush(self) -> None:
        _say(encode_moved(Moved(*self._last)))


def _translated(job: Job, error: OSError) -> SkerryError:
    words = error.strerror or str(error)
    if job.verb == "fetch":
        if error.errno in _FULL:
            return TooBusy(f"There is no room for the files of {job.archive_id}: {words}.")
        return Unavailable(f"The files of {job.archive_id} cannot be written: {words}.")
    return Unavailable(f"The files cannot be read, or what is remembered of them not be written: {words}.")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
