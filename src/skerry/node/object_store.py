"""Where this node's archives go: the archiver of the configured object store, and whether that store can be used."""

import asyncio
import secrets

from skerry.blobs.jobs import Archiver
from skerry.blobs.store import Place, open_blobs
from skerry.config import Config
from skerry.model.capability import Probe
from skerry.model.errors import SkerryError
from skerry.node.tree_keeper import ARCHIVES_AT_ONCE, FETCHES_AT_ONCE

PROBE_S = 5.0
NAME = "object store"


def open_archiver(config: Config) -> Archiver:
    """The archiver of `archive_place`, which must not be empty."""
    cache = config.node_dir / "archives"
    cache.mkdir(mode=0o700, exist_ok=True)
    place = Place(
        config.archive_place,
        config.archive_endpoint,
        config.archive_region,
        config.archive_access_key,
        config.archive_secret_key,
    )
    return Archiver(place, cache, at_once=ARCHIVES_AT_ONCE + FETCHES_AT_ONCE)


async def storage_probe(config: Config) -> Probe:
    """Put a small object, get it back, delete it. Never raises, and ends in a few seconds."""
    where = config.archive_place
    if not where:
        return Probe(NAME, True, "archive_url is 'none': archives are kept nowhere", required=False)
    key, data = f"probe/{secrets.token_hex(8)}", secrets.token_bytes(16)
    try:
        async with asyncio.timeout(PROBE_S):
            blobs = open_blobs(
                where,
                config.archive_endpoint,
                config.archive_region,
                config.archive_access_key,
                config.archive_secret_key,
            )
            await blobs.put(key, data)
            if await blobs.get(key) != data:
                return _failed(f"{where} gave back something else than was put there")
            await blobs.delete(key)
    except TimeoutError:
        return _failed(f"{where} did not answer within {PROBE_S:g} s")
    except (SkerryError, OSError) as error:
        return _failed(f"{where}: {error}")
    return Probe(NAME, True, f"{where}: an object was put, read and deleted", required=False)


def _failed(detail: str) -> Probe:
    remedy = (
        "Check archive_url, archive_endpoint and the keys, and that the store answers from this host. Until then "
        "stopped sandboxes keep their files on this node, and storing them is tried again."
    )
    return Probe(NAME, False, detail, remedy, required=False)
