"""A scene: writers pinned to all nodes, through mounts, in the library, and on a stock tmpfs for comparison.

Its arguments: any of `uring`, `classic`, `tmpfs`, and the program `.../pinned_writers`.
"""

import mmap
import os
import subprocess
from pathlib import Path

import inside

BLOCKS = {"4k": 4096, "1m": 1 << 20}
SIZE_MIB = 16
FALLOCATES = ("native", "none")


def writers(phase: int) -> dict[str, int]:
    """For each node a prefix of its file, and its first CPU."""
    return {f"p{phase:02}node{node}": cpus[0] for node, cpus in inside.node_cpus().items()}


def mounted(transport: str, phase: int) -> None:
    """Each way of writing through a mount."""
    with inside.Pool("--size-per-node", "64M", "--transport", transport) as pool:
        for block in BLOCKS:
            for fallocate in FALLOCATES:
                phase += 1
                before = pool.status()
                inside.fio(pool.directory, writers(phase), block, fallocate, SIZE_MIB)
                inside.tell(what=f"{transport} {block} {fallocate}", **pool.written(list(writers(phase)), before))
                inside.remove(pool.directory, writers(phase))
    inside.tell(what=f"{transport} down", left=pool.left)


def library(program: str, phase: int) -> None:
    """Each way of writing in a process of one's own."""
    for block in BLOCKS.values():
        for fallocate in FALLOCATES:
            phase += 1
            shmem = inside.settled(lambda: inside.meminfo("Shmem"))
            words = [program, SIZE_MIB << 20, block, fallocate, *(f"{cpu}:{prefix}" for prefix, cpu in writers(phase).items())]
            process = subprocess.Popen([*map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            told = inside.settled(lambda: asked(process))
            found = inside.witnessed(process.pid, list(writers(phase)))
            now = inside.settled(lambda: inside.meminfo("Shmem"))
            process.communicate()
            inside.tell(
                what=f"library {block} {fallocate}",
                **told,
                witness={prefix: found.get(prefix, {}) for prefix in writers(phase)},
                present=inside.present(found),
                shmem={node: now[node] - shmem[node] for node in now},
            )


def asked(process: subprocess.Popen) -> dict:
    """What the program tells when it is asked."""
    process.stdin.write("\n")
    process.stdin.flush()
    told = {"map": {}, "accesses": {}, "used": {}, "populated": {}}
    for line in process.stdout:
        kind, *words = line.split()
        if kind == "wrote":
            told["map"].setdefault(words[0], {})[int(words[1])] = int(words[2])
        elif kind == "member":
            told["used"][int(words[0])], told["populated"][int(words[0])] = int(words[1]), int(words[2])
        elif kind == "access":
            told["accesses"][int(words[0]), int(words[1])] = int(words[2])
        elif kind == "end":
            return told
    raise SystemExit(f"the library's writers ended: {process.wait()}")


def stock_tmpfs(phase: int) -> None:
    """The same on a tmpfs: the witness looks at this process, which maps the files."""
    # These pages the kernel may move to who looks at them.
    Path("/proc/sys/kernel/numa_balancing").write_text("0")
    directory = Path("/tmp/stock")
    directory.mkdir()
    inside.run("mount", "-t", "tmpfs", "stock", directory)
    for fallocate in FALLOCATES:
        phase += 1
        inside.fio(directory, writers(phase), "1m", fallocate, SIZE_MIB)
        maps = [mapped(directory / prefix) for prefix in writers(phase)]
        found = inside.witnessed(os.getpid(), list(writers(phase)))
        inside.tell(what=f"tmpfs {fallocate}", witness={prefix: found.get(prefix, {}) for prefix in writers(phase)})
        for shared in maps:
            shared.close()
        inside.remove(directory, writers(phase))
    inside.run("umount", directory)


def mapped(path: Path) -> mmap.mmap:
    """A file, mapped, and every page looked at so that it is present here. It was there: it is not placed by this."""
    with path.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), 0)
    shared[:: mmap.PAGESIZE]
    return shared


for number, argument in enumerate(inside.ARGUMENTS):
    if argument == "tmpfs":
        stock_tmpfs(10 * number)
    elif argument.endswith("pinned_writers"):
        library(argument, 10 * number)
    else:
        inside.offer_rings()
        mounted(argument, 10 * number)
