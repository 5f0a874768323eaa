"""`make lab`: the guest's kernels, the tools the host lacks, and the lab's own programs."""

import errno
import os
import re
import shutil
import signal
import sys
import tarfile
import time
from pathlib import Path

from . import cache, packages
from .errors import LabError, Unavailable

# Packages that the lab runs programs of, and what for.
TOOLS = {
    "qemu-system-x86": "the guest's machine",
    "busybox-static": "the guest's first programs",
    "kmod": "finds which modules a module needs",
}

# Packages that programs in guests need, which are not the project's nor to run on this machine.
GUEST_TOOLS = {"irqbalance": "moves interrupts in a guest, beside homenode"}

# Both kernels, unpacked, and a download beside them.
NEEDED_BYTES = 2_500_000_000


def main() -> int:
    """Brings the cache up to date, with a line for each thing it does. Ends with 3 where something cannot be had."""
    # What it has started ends with it, and what is not whole is removed.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        with cache.locked("prepare", "another `make lab`"):
            try:
                Preparation().run()
            finally:
                packages.forget()
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 3 if isinstance(error, Unavailable) else 1
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "free some space there, or set HOMENODE_LAB_CACHE to another place" if full else "see docs/lab.md"
        print(f"lab: {error}, in the cache {cache.root()}: {remedy}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("lab: interrupted; what is whole stays, run `make lab` again for the rest", file=sys.stderr)
        return 130
    return 0


class Preparation:
    """One run of `make lab`."""

    def __init__(self):
        self.view = None

    def run(self) -> None:
        """Makes what is missing, in the order in which one needs the other."""
        begin = time.monotonic()
        if os.uname().machine != "x86_64":
            raise Unavailable(f"the lab's guests and its counter are for x86_64, and this machine is {os.uname().machine}")
        for left in [*cache.root().glob(".*"), *cache.root().glob("*/.*")]:
            shutil.rmtree(left, ignore_errors=True)
            left.unlink(missing_ok=True)
        self.tools(TOOLS, cache.tools())
        self.tools(GUEST_TOOLS, cache.guest_tools())
        for name, suite in cache.KERNELS.items():
            self.kernel(name, suite)
        self.programs()
        print(f"lab: ready in {cache.root()} ({time.monotonic() - begin:.1f} s)")

    def apt(self) -> packages.View:
        """apt, once something is missing."""
        if self.view is None:
            free = shutil.disk_usage(cache.root()).free
            if free < NEEDED_BYTES:
                raise Unavailable(
                    f"{cache.root()} has {free >> 20} MiB of space, and the lab needs {NEEDED_BYTES >> 20}: "
                    "free some, or set HOMENODE_LAB_CACHE to another place"
                )
            self.view = packages.View()
        return self.view

    def tools(self, wanted: dict[str, str], final: Path) -> None:
        """Unpacks the packages that the machine has not installed, with what they depend on."""
        missing = [package for package in wanted if not packages.installed(package)]
        if not missing or final.exists():
            return
        for package in missing:
            print(f"lab: fetching {package}: {wanted[package]}", flush=True)
        with cache.staged(final) as stage:
            for archive in self.apt().download_missing(missing):
                packages.unpack(archive, stage)
                archive.unlink()

    def kernel(self, name: str, suite: str) -> None:
        """Unpacks a kernel, and lists which of its modules needs which."""
        final = cache.kernel_directory(name)
        if final.exists():
            return
        print(f"lab: fetching the kernel {name} of {suite}", flush=True)
        with cache.staged(final) as stage:
            archive = self.apt().download(self.apt().kernel_package(name, suite), stage)
            packages.unpack(archive, stage)
            archive.unlink()
            kernel = cache.Kernel(stage)
            base = kernel.modules.parent.parent.parent
            depmod = cache.tool("depmod")
            packages.run([depmod, "-b", base, kernel.version], env=cache.tool_environment(depmod))

    def programs(self) -> None:
        """Builds the programs whose source has changed."""
        for name in cache.PROGRAMS:
            final = cache.program(name)
            if final.exists():
                continue
            print(f"lab: building {cache.PROGRAMS[name]}", flush=True)
            # What runs in the guest is linked statically, to run there whatever the host's libraries are.
            kind = ["-static"]
            if name == "counter.so":
                kind = ["-shared", "-fPIC", "-fvisibility=hidden", f"-I{self.plugin_header()}"]
            source = cache.SOURCES / cache.PROGRAMS[name]
            final.parent.mkdir(parents=True, exist_ok=True)
            stage = final.parent / f".{final.name}"
            packages.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", *kind, "-o", stage, source])
            stage.rename(final)

    def plugin_header(self) -> Path:
        """The directory of QEMU's plugin header: no package has it, so it is taken out of QEMU's source."""
        version = qemu_version()
        final = cache.root() / "headers" / version
        if not final.exists():
            print(f"lab: fetching the plugin header of QEMU {version}", flush=True)
            with cache.staged(final) as stage:
                self.apt().apt("source", "--download-only", "--tar-only", "qemu", directory=stage)
                source = next(stage.glob("qemu_*.tar.*"))
                if not source.name.startswith(f"qemu_{version}"):
                    raise Unavailable(f"QEMU is {version}, and the mirror's source is {source.name}: install Debian's QEMU")
                extract(source, "/include/qemu/qemu-plugin.h", stage / "qemu-plugin.h")
                source.unlink()
        return final


def extract(archive: Path, suffix: str, to: Path) -> None:
    """Takes the one file whose name ends so out of an archive."""
    with tarfile.open(archive) as files:
        for entry in files:
            if entry.name.endswith(suffix):
                to.write_bytes(files.extractfile(entry).read())
                return
    raise LabError(f"{archive.name} holds no file that ends in {suffix}")


def qemu_version() -> str:
    """The version of the QEMU that the lab runs: its first two numbers."""
    qemu = cache.tool("qemu-system-x86_64")
    told = packages.run([qemu, "--version"], env=cache.tool_environment(qemu))
    found = re.search(r"version (\d+\.\d+)", told)
    if not found:
        raise LabError(f"{qemu} tells no version: {told.strip()[:80]}")
    return found[1]
