"""The log of a disk's writes that the kernel's dm-log-writes makes on another disk: what was durable when.

A write that the disk has finished is logged when the next flush is done, or at once if it was forced (FUA). So the disk as of an
entry that is a flush, or forced, has what was promised by then, and none of what was not.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path

SUPER = struct.Struct("<QQQI")
ENTRY = struct.Struct("<QQQQ")
MAGIC = 0x6A736677736872
SECTOR_BYTES = 512
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8


@dataclass(frozen=True)
class Entry:
    """A request of the disk, or a mark."""

    to: int
    """The first byte on the disk."""
    bytes: int
    flags: int
    at: int
    """Where its bytes are in the log."""
    mark: str | None

    @property
    def is_durable(self) -> bool:
        """Whether all before it, and itself, was promised when it was done."""
        return bool(self.flags & (FLUSH | FUA))


class WriteLog:
    """A log, read."""

    def __init__(self, path: Path):
        self.file = os.open(path, os.O_RDONLY)
        magic, version, self.count, self.sector_bytes = SUPER.unpack(os.pread(self.file, SUPER.size, 0))
        if (magic, version) != (MAGIC, 1):
            raise ValueError(f"{path} holds no log of writes")

    def entries(self):
        """All of them, the oldest first."""
        at = self.sector_bytes
        for _ in range(self.count):
            head = os.pread(self.file, self.sector_bytes, at)
            sector, sectors, flags, extra_bytes = ENTRY.unpack(head[: ENTRY.size])
            at += self.sector_bytes
            mark = head[ENTRY.size : ENTRY.size + extra_bytes].decode() if flags & MARK else None
            size = sectors * self.sector_bytes
            yield Entry(sector * self.sector_bytes, size, flags, at, mark)
            at += 0 if flags & DISCARD else size

    def apply(self, entry: Entry, disk: int) -> None:
        """Does to a disk what the entry says."""
        if entry.flags & MARK or not entry.bytes:
            return
        data = bytes(entry.bytes) if entry.flags & DISCARD else os.pread(self.file, entry.bytes, entry.at)
        if os.pwrite(disk, data, entry.to) != entry.bytes or len(data) != entry.bytes:
            raise ValueError(f"{entry} cannot be done")
