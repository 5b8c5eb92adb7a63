"""From the settings of an instance to its object store."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from skerry.blobs.files import FileObjects
from skerry.blobs.objects import Objects
from skerry.model.errors import Invalid

if TYPE_CHECKING:
    from skerry.seams.blobs import Blobs  # all seams come with it, and a worker starts in half the time without


@dataclass(frozen=True, slots=True)
class Place:
    """Where archives are kept: `url` is file:///directory or s3://bucket/prefix; the rest is for S3 alone."""

    url: str
    endpoint: str = ""
    region: str = "us-east-1"
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)


def open_blobs(place: str, endpoint: str, region: str, access_key: str, secret_key: str) -> "Blobs":
    """The object store at `place`. Nothing is asked of it yet, nor made.

    Raises:
        Invalid: There is no such kind of place.
    """
    from skerry.blobs.threaded import Threaded  # not for workers, which have no event loop to load

    return Threaded(open_objects(Place(place, endpoint, region, access_key, secret_key)))


def open_objects(place: Place) -> Objects:
    """The same, blocking. Raises Invalid."""
    kind, _, rest = place.url.partition("://")
    if kind == "file" and rest.startswith("/"):
        return FileObjects(Path(rest))
    bucket, _, prefix = rest.partition("/")
    if kind == "s3" and bucket:
        from skerry.blobs.s3 import S3Objects  # 40 ms that no directory needs

        return S3Objects(
            bucket,
            prefix.strip("/"),
            endpoint=place.endpoint,
            region=place.region,
            access_key=place.access_key,
            secret_key=place.secret_key,
        )
    raise Invalid(f"{place.url!r} is no place for archives: give file:///directory or s3://bucket/prefix.")
