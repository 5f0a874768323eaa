"""The kernel's books about where the bytes of files lie: witness.c, which is compiled for a guest and run there."""

import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
# What a page that begins with none of the prefixes counts under.
OTHER = "-"
PAGE_BYTES = 4096


def compiled(directory: Path, name: str = "witness") -> Path:
    """A program of this directory, in one that guests see."""
    program = directory / name
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o", program, HERE / f"{name}.c"], check=True)
    return program


def table(written: str) -> dict[str, dict[int, int]]:
    """What the witness wrote: of each prefix, and of OTHER, the bytes of the pages on each node."""
    found = {}
    for line in written.splitlines():
        prefix, node, pages = line.split()
        found.setdefault(prefix, {})[int(node)] = int(pages) * PAGE_BYTES
    return found
