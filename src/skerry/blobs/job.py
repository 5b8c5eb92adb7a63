"""What the node and its worker tell each other: one job on stdin, lines of JSON on stdout. Both sides import this.

Secrets go through the pipe alone: arguments and environments of a process can be read by others.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from skerry.blobs.store import Place
from skerry.model import errors
from skerry.model.capture import Archive, Moved, Swept
from skerry.model.errors import SkerryError, Unavailable

_KINDS = {
    kind.__name__: kind
    for kind in (errors.Invalid, errors.NotFound, errors.Conflict, errors.Refused, errors.TooBusy, errors.Unavailable)
}


@dataclass(frozen=True, slots=True)
class Job:
    """One job. `tree` is the tree to read, or the empty directory to fill; the rest is for those that need it."""

    verb: Literal["archive", "fetch", "sweep"]
    place: Place
    vault_id: str
    vault_key: str = field(repr=False)  # hex
    cache_dir: str
    parent_pid: int
    tree: str = ""
    archive_id: str = ""
    cache_name: str = ""
    captured_at_ns: int = 0
    keep: tuple[str, ...] = ()
    older_than_s: float = 0.0
    dry: bool = False


def encode_job(job: Job) -> bytes:
    return json.dumps(asdict(job)).encode()


def decode_job(data: bytes) -> Job:
    told: dict[str, Any] = json.loads(data)
    told["place"] = Place(**told["place"])
    told["keep"] = tuple(told["keep"])
    return Job(**told)


def encode_moved(moved: Moved) -> str:
    return json.dumps({"moved": asdict(moved)})


def encode_swept(swept: Swept) -> str:
    return json.dumps({"swept": asdict(swept)})


def encode_error(error: SkerryError) -> str:
    kind = type(error).__name__
    told = {"kind": kind if kind in _KINDS else "Unavailable", "message": error.message, "code": error.code}
    return json.dumps({"error": told})


DONE = json.dumps({"done": True})


def decode_answer(line: bytes) -> Moved | Swept | None:
    """What a line tells; None: the job is done.

    Raises:
        SkerryError: The one that the worker met.
    """
    told: dict[str, Any] = json.loads(line)
    if "moved" in told:
        moved = told["moved"]
        made = moved.pop("archive")
        return Moved(**moved, archive=None if made is None else Archive(**made))
    if "swept" in told:
        return Swept(**told["swept"])
    if "error" in told:
        error = told["error"]
        raise _KINDS.get(error["kind"], Unavailable)(error["message"], code=error["code"])
    return None
