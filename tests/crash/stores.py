"""Object stores that can die and come back, for the tests of what a server does meanwhile."""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any, Protocol

from acceptance.servers import test_home
from conformance.weed_process import ACCESS_KEY, BUCKET, SECRET_KEY, Weed

from skerry.config import Config
from skerry.model.capture import Swept
from skerry.providers.local import LocalProvider
from skerry.store import open_store


class ObjectStore(Protocol):
    """One that a server is told of by `settings`. `die` and `live` may be called twice."""

    settings: dict[str, Any]

    def live(self) -> None: ...
    def die(self) -> None: ...
    def close(self) -> None: ...


class DirectoryStore:
    """A directory, in whose place there is a file while it is dead."""

    def __init__(self) -> None:
        self._place = test_home() / "store"
        self._aside = self._place.with_name("store-aside")
        self.close()
        self.settings: dict[str, Any] = {"archive_url": f"file://{self._place}"}

    def live(self) -> None:
        if self._place.is_file():
            self._place.unlink()
        if self._aside.exists():
            self._aside.rename(self._place)

    def die(self) -> None:
        if not self._place.is_file():
            if self._place.exists():
                self._place.rename(self._aside)
            self._place.touch()

    def close(self) -> None:
        self._place.unlink() if self._place.is_file() else shutil.rmtree(self._place, ignore_errors=True)
        shutil.rmtree(self._aside, ignore_errors=True)


class S3Store:
    """A SeaweedFS, which is killed and started again."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="skerry-weed-"))
        self._weed = Weed(self._directory)
        self.settings: dict[str, Any] = {
            "archive_url": f"s3://{BUCKET}/crash",
            "archive_endpoint": self._weed.endpoint,
            "archive_access_key": ACCESS_KEY,
            "archive_secret_key": SECRET_KEY,
        }

    def live(self) -> None:
        if self._weed.process is None:
            self._weed.start()

    def die(self) -> None:
        self._weed.kill()

    def close(self) -> None:
        self._weed.kill()
        shutil.rmtree(self._directory)


def sweep(config: Config, *, dry: bool = False) -> list[Swept]:
    """What the reconciler does each hour, at once and without a grace time, for each account."""

    async def ask() -> list[Swept]:
        store = await open_store(config.database_url, secrets_file=config.secrets_file)
        provider = LocalProvider(config.node_socket)
        try:
            vaults = await store.list_vaults()
            wanted = {account: await store.archives_wanted(account) for account in vaults}
            return [
                await provider.sweep(vault, wanted[account], older_than_s=0, dry=dry)
                for account, vault in vaults.items()
            ]
        finally:
            await provider.close()
            await store.close()

    return asyncio.run(ask())


def stored_bytes(config: Config) -> int:
    """What the object store still holds of all accounts."""
    return sum(swept.stored_bytes for swept in sweep(config, dry=True))
