"""Another program that eats a node's memory. Its words: `anonymous` or `tmpfs`; the node; MiB. Eats until the node can give
less than that, free or as page cache, says so, and keeps it until its input ends.
"""

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

from pool import MIB, WORDS, memory

SET_MEMPOLICY, BIND, POPULATE_WRITE = 238, 2, 23
STEP = 4 * MIB


def anonymous(node: int, enough) -> list:
    """Memory of its own, bound to the node."""
    libc = ctypes.CDLL(None, use_errno=True)
    mask = ctypes.c_ulong(1 << node)
    eaten = []
    while not enough():
        part = mmap.mmap(-1, STEP)
        # Only what is populated here: the interpreter lies where it may.
        for policy, bits in ((BIND, 64), (0, 0)):
            if libc.syscall(SET_MEMPOLICY, policy, ctypes.byref(mask) if bits else None, bits):
                raise OSError(ctypes.get_errno(), "set_mempolicy")
            if bits:
                part.madvise(POPULATE_WRITE)
        eaten.append(part)
    return eaten


def tmpfs(node: int, enough) -> list:
    """A file in memory, bound to the node."""
    directory = f"/tmp/eater-{node}"
    os.makedirs(directory)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mpol=bind:{node},size=100%", "eater", directory], check=True)
    file = os.open(f"{directory}/eaten", os.O_RDWR | os.O_CREAT, 0o600)
    # When this process ends the file goes, and with it the mount.
    subprocess.run(["umount", "--lazy", directory], check=True)
    os.rmdir(directory)
    while not enough():
        os.write(file, b"\1" * STEP)
    return [file]


def available(node: int) -> int:
    """What the node could still give."""
    fields = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
    return sum(memory(node, field) for field in fields)


def main(kind: str, node: int, leave: int) -> None:
    """Eats, tells, waits."""
    Path("/proc/sys/vm/drop_caches").write_text("3")
    eaten = {"anonymous": anonymous, "tmpfs": tmpfs}[kind](node, lambda: available(node) < leave * MIB)
    print(f"eaten {len(eaten)}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*WORDS)
