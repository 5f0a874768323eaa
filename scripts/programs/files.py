"""Names and small files."""

import glob
import os
import pathlib
import shutil
import time

from .case import Case

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
FILES = 20_000


class List(Case):
    """`ls -l` of 20,000 files."""

    has_small_files = True

    def once(self, at):
        (at.directory / "many").mkdir()
        for number in range(FILES):
            (at.directory / "many" / f"file-{number}").write_bytes(b"x" * 100)

    def measure(self, at):
        return at.timed("ls", "-l", at.directory / "many")


class ListCold(List):
    """The same after the kernel has forgotten names and attributes, which those of a tmpfs it cannot."""

    def before(self, at):
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("2")


class StatAfterBurst(Case):
    """stat of 2,000 files that were just written."""

    unit, scale = "us/file", 1e6
    has_small_files = True

    def measure(self, at):
        paths = [at.directory / "burst" / f"file-{number}" for number in range(2000)]
        (at.directory / "burst").mkdir()
        for path in paths:
            path.write_bytes(bytes(4096))
        start = time.monotonic()
        for path in paths:
            os.stat(path)
        return (time.monotonic() - start) / len(paths)

    def after(self, at):
        shutil.rmtree(at.directory / "burst")


class Rsync(Case):
    """rsync -a of /usr/include into an empty directory."""

    has_small_files = True
    needs = {"rsync": "apt-get install rsync"}

    def measure(self, at):
        return at.timed("rsync", "-a", "/usr/include/", at.directory / "include")

    def after(self, at):
        shutil.rmtree(at.directory / "include")


class CloneAndBuild(Case):
    """git clone of this repository, and bzip2 built with make -j2."""

    has_small_files = True
    needs = {"git": "apt-get install git", "make": "apt-get install make"}

    def measure(self, at):
        [source] = glob.glob(os.path.expanduser("~/.cargo/registry/src/*/bzip2-sys-*/bzip2-1.0.8"))
        start = time.monotonic()
        at.run("git", "clone", "--quiet", "--no-hardlinks", REPOSITORY, at.directory / "clone")
        shutil.copytree(source, at.directory / "build")
        at.run("make", "-j2", "-C", at.directory / "build", "bzip2")
        return time.monotonic() - start

    def after(self, at):
        shutil.rmtree(at.directory / "clone")
        shutil.rmtree(at.directory / "build")
