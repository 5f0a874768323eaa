"""Fills a pool through LMDB, and reads back what was committed.

    lmdb_full.py DIR SCRATCH WAY...

A child process commits transactions until the pool is full, once in each WAY: write, by write(2), or writemap, through a
mapping. It must end by an error or by SIGBUS. Every value whose commit returned must then be there, byte by byte.
"""

import hashlib
import os
import random
import shutil
import signal
import sys

import lmdb

# Larger than the pool: the pool is what ends the writer.
MAP_BYTES = 2 << 30
VALUES_PER_COMMIT = 16
COMMITS_MAX = 10_000
DISK_FULL = 3


def value(key):
    """Bytes that the key alone decides."""
    source = random.Random(key)
    return source.randbytes(source.randrange(2_000, 40_000))


def fill(path, writemap, committed):
    """Commits until an error; tells each commit that returned by a line in `committed`."""
    environment = lmdb.open(path, map_size=MAP_BYTES, writemap=writemap)
    for commit in range(COMMITS_MAX):
        keys = range(commit * VALUES_PER_COMMIT, (commit + 1) * VALUES_PER_COMMIT)
        try:
            with environment.begin(write=True) as transaction:
                for key in keys:
                    transaction.put(key.to_bytes(8, "big"), value(key))
        except lmdb.Error as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(DISK_FULL)
        os.write(committed, b".")
    os._exit(0)


def run(directory, scratch, way):
    path = os.path.join(directory, way)
    reader, writer = os.pipe()
    log = os.path.join(scratch, way + ".log")
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
        try:
            fill(path, way == "writemap", writer)
        except lmdb.Error as error:
            print(error, file=sys.stderr, flush=True)
        os._exit(DISK_FULL)
    os.close(writer)
    commits = 0
    while lines := os.read(reader, 65536):
        commits += len(lines)
    status = os.waitpid(child, 0)[1]
    with open(log) as text:
        said = text.read().strip()
    if os.WIFSIGNALED(status):
        end = signal.Signals(os.WTERMSIG(status)).name
        assert end == "SIGBUS", f"the writer ended by {end}"
    else:
        end = "an error"
        assert os.WEXITSTATUS(status) == DISK_FULL, f"the writer met no error: {os.WEXITSTATUS(status)} {said}"
        assert said, "the writer's error has no text"
    assert commits > 0, "nothing was committed before the pool was full"

    # Only what the filesystem kept counts, not what the kernel caches of it.
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as drop:
        drop.write("1")
    environment = lmdb.open(path, map_size=MAP_BYTES, readonly=True)
    with environment.begin() as transaction:
        entries = transaction.stat()["entries"]
        assert entries == commits * VALUES_PER_COMMIT, f"{entries} entries after {commits} commits"
        for key in range(entries):
            found = transaction.get(key.to_bytes(8, "big"))
            assert found is not None, f"key {key} is lost"
            assert hashlib.md5(found).digest() == hashlib.md5(value(key)).digest(), f"key {key} has other bytes"
    environment.close()
    shutil.rmtree(path)
    return f"{entries} values whole after {end}"


print("; ".join(f"{way}: {run(sys.argv[1], sys.argv[2], way)}" for way in sys.argv[3:]))
