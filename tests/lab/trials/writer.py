"""A program that writes and reads, and knows what must be there. Its words: a path, the node it is pinned to, and the blocks of
the file, and whether to use O_DIRECT, as it does if that is not said. Overwrites blocks at random and reads others back; makes and empties PATH.new, so that blocks
are taken and freed too. A line of its input is a tag: all of its blocks begin with it when it says so, and all that it writes
from then on; or it is ?, which asks how many blocks it has written. At the end of its input it reads everything, tells how often it wrote, and ends.
"""

import os
import random
import select
import sys

from pool import BLOCK, WORDS, on_node

SPAN_MAX = 64
# Blocks of PATH.new.
NEW = 300


class Writer:
    """A file and what it has to hold."""

    def __init__(self, path: str, blocks: int, tag: str, direct: bool):
        self.path, self.tag, self.blocks = path, tag, blocks
        self.flags = os.O_RDWR | os.O_CREAT | (os.O_DIRECT if direct else 0)
        self.file = os.open(path, self.flags, 0o600)
        self.held = [b""] * blocks
        self.number = 0

    def stamp(self, block: int) -> bytes:
        """The bytes of a block, never the same twice."""
        self.number += 1
        return (b"%s:%08x:%08x;" % (self.tag.encode(), block, self.number) * BLOCK)[:BLOCK]

    def put(self, file: int, first: int, stamps: list[bytes]) -> None:
        """Writes blocks, all of them."""
        done = os.pwrite(file, b"".join(stamps), first * BLOCK)
        assert done == len(stamps) * BLOCK, f"{self.path}: {done} bytes were written of {len(stamps)} blocks"

    def check(self, file: int, first: int, stamps: list[bytes]) -> None:
        """Reads blocks, which have to be these."""
        found = os.pread(file, len(stamps) * BLOCK, first * BLOCK)
        for at, stamp in enumerate(stamps):
            block = found[at * BLOCK : (at + 1) * BLOCK]
            assert block == stamp, f"{self.path}: block {first + at} begins with {block[:40]}, and {stamp[:40]} was written"

    def write(self, first: int, count: int) -> None:
        """Overwrites blocks. The table keeps what tells a stamp from others."""
        stamps = [self.stamp(block) for block in range(first, first + count)]
        self.put(self.file, first, stamps)
        self.held[first : first + count] = [stamp[:64] for stamp in stamps]

    def verify(self, first: int, count: int) -> None:
        """Reads blocks back."""
        heads = self.held[first : first + count]
        self.check(self.file, first, [(head[: head.index(b";") + 1] * BLOCK)[:BLOCK] for head in heads])

    def write_all(self, tag: str) -> None:
        """Every block begins with the tag."""
        self.tag = tag
        for first in range(0, self.blocks, SPAN_MAX):
            self.write(first, min(SPAN_MAX, self.blocks - first))

    def make_new(self) -> None:
        """Takes blocks, and gives them back."""
        new = os.open(f"{self.path}.new", self.flags | os.O_TRUNC, 0o600)
        stamps = [b"new-" + self.stamp(block)[:-4] for block in range(NEW)]
        for first in range(0, NEW, SPAN_MAX):
            self.put(new, first, stamps[first : first + SPAN_MAX])
        self.check(new, 0, stamps)
        os.ftruncate(new, 0)
        os.close(new)

    def step(self) -> None:
        """One of what it does."""
        first = random.randrange(self.blocks)
        count = min(random.randint(1, SPAN_MAX), self.blocks - first)
        kind = random.randrange(16)
        if kind == 0:
            self.make_new()
        elif kind % 2:
            self.write(first, count)
        else:
            self.verify(first, count)


def main(path: str, node: int, blocks: int, direct: bool = True) -> None:
    """Until the input ends."""
    random.seed(node)
    with on_node(node):
        writer = Writer(path, blocks, "-", direct)
        while tag := sys.stdin.readline().strip():
            if tag == "?":
                print(f"wrote {writer.number}", flush=True)
            else:
                writer.write_all(tag)
                print(f"tagged {tag}", flush=True)
            while not select.select([sys.stdin], [], [], 0)[0]:
                writer.step()
        writer.verify(0, blocks)
        print(f"verified {writer.number}", flush=True)


main(*WORDS)
