"""Single files of this machine: read in pieces, or written under a hidden name until they are whole."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from skerry.model.errors import Invalid, NotFound

PIECE = 1 << 20
LocalPath = str | os.PathLike[str]


class Source:
    """A regular file, opened anew for each `pieces`. `size_bytes` and `mode` are as of its making."""

    def __init__(self, path: LocalPath) -> None:
        self._path = Path(path)
        try:
            about = self._path.stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound(f"There is no {self._path} on this machine.", field="local") from error
        if not stat.S_ISREG(about.st_mode):
            raise Invalid(f"{self._path} is no regular file. `upload_dir` sends a directory.", field="local")
        self.size_bytes = about.st_size
        self.mode = f"{about.st_mode & 0o777:04o}"

    def pieces(self) -> Iterator[bytes]:
        with self._path.open("rb", buffering=0) as file:
            while piece := file.read(PIECE):
                yield piece


class Part:
    """A file in the making, beside the one that it is to replace. `close` in any case; without `keep` nothing stays."""

    def __init__(self, path: LocalPath) -> None:
        self._path = Path(path)
        if self._path.exists() and not self._path.is_file():
            raise Invalid(f"{self._path} is no regular file, and is not replaced.", field="local")
        self._part = self._path.with_name(f".{self._path.name[:200]}.{secrets.token_hex(4)}.part")
        # A new file, never through a symlink.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        self._file = os.fdopen(os.open(self._part, flags, 0o666), "wb", buffering=0)
        self.size_bytes = 0

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
        self.size_bytes += len(data)

    def keep(self) -> None:
        """Put it under its name."""
        self._file.close()
        self._part.replace(self._path)

    def close(self) -> None:
        self._file.close()
        with suppress(FileNotFoundError):
            self._part.unlink()
