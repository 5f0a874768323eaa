"""A scene: a pool on whatever machine the guest is, and writers on each of its nodes.

Its arguments: the size of each member, then words in turn. `uring` and `classic` bring a pool up by that transport, after
taking the last one down; others are steps on it: `local` a writer on each node, `policy:N` a file whose directory says so,
`hotplug:N` takes the CPUs of a node offline and back while files are written, `online` brings every CPU online, `fill` writes
a file that only all members together hold.
"""

import itertools
import multiprocessing
import os
from pathlib import Path

import inside

CPUS = Path("/sys/devices/system/cpu")
SIZE_MIB = 4
# Of the files that are rewritten while CPUs come and go.
FILE_BYTES, BLOCK_BYTES = 1 << 20, 16 << 10
COUNTER = itertools.count()


def named(nodes) -> dict[str, int]:
    """Names for files of these nodes, that no other file has."""
    count = next(COUNTER)
    return {f"f{count:03}n{node:03}": node for node in nodes}


def first_cpus() -> dict[int, int]:
    """A CPU of each node that has one online."""
    return {node: cpus[0] for node, cpus in inside.node_cpus().items() if cpus}


def write(pool: inside.Pool, what: str, homes: dict[str, int], cpus: dict[str, int], directory=".", mib=SIZE_MIB, **facts) -> None:
    """Writes a file for each home, from these CPUs, and tells where they lie."""
    before = pool.status()
    inside.fio(pool.directory / directory, cpus, mib=mib)
    written = pool.written(list(homes), before, directory)
    inside.tell(what=what, homes=homes, status=pool.status(), **written, **facts)
    inside.remove(pool.directory / directory, homes)


def local(pool: inside.Pool, what: str, **facts) -> None:
    """A writer on each node that has CPUs."""
    first = first_cpus()
    homes = named(first)
    write(pool, what, homes, {prefix: first[node] for prefix, node in homes.items()}, **facts)


def policy(pool: inside.Pool, what: str, node: int) -> None:
    """A file that belongs on a node, written from another."""
    directory = pool.directory / f"bound{next(COUNTER)}"
    directory.mkdir()
    os.setxattr(directory, "user.homenode.policy", f"node:{node}".encode())
    homes = named([node])
    cpu = next(cpu for other, cpu in first_cpus().items() if other != node)
    write(pool, what, homes, dict.fromkeys(homes, cpu), directory.name)
    directory.rmdir()


def switch(cpu: int, online: int) -> None:
    """Takes a CPU offline or online."""
    (CPUS / f"cpu{cpu}/online").write_text(str(online))


def online(*_) -> None:
    """Brings every CPU online that is there."""
    for cpu in set(inside.cpu_list((CPUS / "present").read_text())) - set(inside.cpu_list((CPUS / "online").read_text())):
        switch(cpu, 1)


def stamped(name: str, generation: int, size: int) -> bytes:
    """Bytes that begin with the file's name, and are of this generation alone."""
    stamp = f"{name}{generation:08}".encode()
    return stamp * (size // len(stamp))


def is_whole(path: Path, generation: int) -> bool:
    """Whether all of the file is of that generation."""
    return inside.contents(path) == stamped(path.name, generation, FILE_BYTES)


def rewrite(path: Path, cpu: int, stop, written) -> None:
    """Writes generations of a file, and reads each back, from a CPU as long as that is there. Tells the last one."""
    os.sched_setaffinity(0, {cpu})
    with path.open("wb", buffering=0) as file:
        while not stop.is_set():
            generation = written.value + 1
            block = stamped(path.name, generation, BLOCK_BYTES)
            for offset in range(0, FILE_BYTES, BLOCK_BYTES):
                if os.pwrite(file.fileno(), block, offset) != BLOCK_BYTES:
                    raise OSError(f"{path}: a short write")
            if not is_whole(path, generation):
                raise OSError(f"{path}: other bytes than were written, in generation {generation}")
            written.value = generation


def hotplug(pool: inside.Pool, what: str, node: int) -> None:
    """Takes a node's CPUs offline and back, under a writer of its own and one of another node."""
    cpus, others = inside.node_cpus()[node], [cpu for other, cpu in first_cpus().items() if other != node]
    paths = [pool.directory / name for name in named([node, node + 1])]
    stop, generations = multiprocessing.Event(), [multiprocessing.Value("Q", 0) for _ in paths]
    written = lambda: [generation.value for generation in generations]
    writers = [
        multiprocessing.Process(target=rewrite, args=(path, cpu, stop, generation), daemon=True)
        for path, cpu, generation in zip(paths, (cpus[0], others[0]), generations, strict=True)
    ]
    for writer in writers:
        writer.start()
    inside.wait(lambda: min(written()) > 0, "the writers wrote")
    for is_first in (True, False):
        for cpu in cpus:
            switch(cpu, 0)
        if is_first:
            local(pool, f"{what} off", online=inside.node_cpus())
            policy(pool, f"{what} off, by policy", node)
        # One that was begun before, and one whole.
        least = [generation + 2 for generation in written()]
        inside.wait(lambda: all(now >= then for now, then in zip(written(), least, strict=True)), "each writer goes on")
        for cpu in cpus:
            switch(cpu, 1)
    running = [writer.is_alive() for writer in writers]
    stop.set()
    for writer in writers:
        writer.join()
    ended = [writer.exitcode for writer in writers]
    whole = [is_whole(path, generation) for path, generation in zip(paths, written(), strict=True)]
    inside.tell(what=what, running=running, ended=ended, whole=whole)
    for path in paths:
        path.unlink()
    local(pool, f"{what} on again")


def fill(pool: inside.Pool, what: str) -> None:
    """A file of nearly all there is, from the first CPU."""
    name = "filling."
    mib = int(pool.status()["capacity_bytes"] * 0.9) >> 20
    before = pool.status()
    inside.fio(pool.directory, {name: first_cpus()[0]}, mib=mib)
    inside.tell(what=what, filled=mib << 20, status=pool.status(), **pool.written([name], before))
    inside.remove(pool.directory, [name])


STEPS = {"local": local, "policy": policy, "hotplug": hotplug, "online": online, "fill": fill}


def scene(size: str, words: list[str]) -> None:
    """A pool for each transport, and the steps on it."""
    inside.tell(what="machine", cpus=inside.node_cpus(), memory=inside.meminfo("MemTotal"), topology=inside.topology())
    inside.offer_rings()
    while words:
        transport = words.pop(0)
        with inside.Pool("--size-per-node", size, "--transport", transport) as pool:
            while words and words[0] not in ("uring", "classic"):
                step = words.pop(0)
                name, _, node = step.partition(":")
                STEPS[name](pool, f"{transport} {step}", *([int(node)] if node else []))
        inside.tell(what=f"{transport} down", left=pool.left)


scene(inside.ARGUMENTS[0], inside.ARGUMENTS[1:])
