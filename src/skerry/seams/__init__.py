"""The protocols everything outside stands behind. Whoever implements one passes its suite in `skerry.testing`.

Control is written against these alone. A new seam needs a decision record.
"""

from skerry.seams.clock import Clock
from skerry.seams.guest import ArchiveReader, ByteStream, FileReader, Guest
from skerry.seams.provider import Provider
from skerry.seams.runtime import Runtime
from skerry.seams.store import Store

__all__ = ["ArchiveReader", "ByteStream", "Clock", "FileReader", "Guest", "Provider", "Runtime", "Store"]
