"""What the guest's kernel finds in memory when it starts: busybox, the modules it needs, the lab's programs and the job."""

import os
import shlex
import subprocess
from pathlib import Path

from . import cache
from .errors import LabError
from .options import Run

# The port to the host, its files, the layer above them; and what programs mount and the host's modprobe may not find.
ALWAYS = ["virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay", "configfs", "fuse"]
FOR_NVME = ["nvme"]
FOR_NVDIMM = ["nfit", "nd_pmem", "dax_pmem", "device_dax"]
FOR_NET = ["virtio_net"]

DECOMPRESSORS = {".xz": ["xz", "-dc"], ".zst": ["zstd", "-dc"], ".gz": ["gzip", "-dc"], ".ko": ["cat"]}


def build(run: Run, kernel: cache.Kernel) -> bytes:
    """The archive."""
    archive = Archive()
    for directory in ("bin", "modules", "lab", "proc", "sys", "dev", "host", "layer", "root"):
        archive.directory(directory)
    archive.program("init", (cache.SOURCES / "guest/init").read_bytes())
    archive.program("bin/busybox", cache.tool("busybox").read_bytes())
    for number, module in enumerate(modules(run, kernel)):
        plain = module.name.partition(".ko")[0]
        archive.program(f"modules/{number:03}-{plain}.ko", decompress(module))
    for name in ("agent", "mark"):
        archive.program(f"lab/{name}", cache.require(cache.program(name), f"the lab's program {name}").read_bytes())
    archive.program("lab/job", job(run, kernel).encode())
    archive.program("lab/command", b"".join(os.fsencode(word) + b"\0" for word in run.command))
    return archive.whole()


def job(run: Run, kernel: cache.Kernel) -> str:
    """The variables that guest/init reads."""
    here = Path.cwd()
    below_tmp = [here] if here.is_relative_to("/tmp") else []
    variables = {
        "VERSION": kernel.version,
        "MODULES": str(kernel.modules.resolve()),
        "DIRECTORY": str(here),
        "HOST_PATH": os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin") + ":/usr/sbin:/sbin",
        "SHOWN": "\n".join(map(str, below_tmp + run.shown)),
        "SHARED": "\n".join(map(str, run.shared)),
        "SOURCE": "yes" if run.source else "",
        "OFFLINE_CPUS": " ".join(map(str, run.machine.offline_cpus)),
    }
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())


def modules(run: Run, kernel: cache.Kernel) -> list[Path]:
    """The files of the modules to load, each behind those it needs."""
    files = {}
    needs = {}
    for line in (kernel.modules / "modules.dep").read_text().splitlines():
        file, _, needed = line.partition(":")
        files[module_name(file)] = file
        needs[file] = needed.split()
    builtin = {module_name(line) for line in (kernel.modules / "modules.builtin").read_text().splitlines()}
    wanted = list(ALWAYS)
    wanted += FOR_NVME if run.machine.nvme else []
    wanted += FOR_NVDIMM if run.machine.nvdimm else []
    wanted += FOR_NET if run.machine.net else []
    ordered = []
    for name in wanted + run.modules:
        file = files.get(module_name(name))
        if file:
            # depmod lists what a module needs from the nearest to the farthest.
            ordered += [*reversed(needs[file]), file]
        elif module_name(name) not in builtin:
            raise LabError(f"the kernel {kernel.version} has no module {name}")
    return [kernel.modules / file for file in dict.fromkeys(ordered)]


def module_name(file: str) -> str:
    """A module's name: the kernel writes it with underscores, files may have dashes."""
    return file.rpartition("/")[2].partition(".ko")[0].replace("-", "_")


def decompress(file: Path) -> bytes:
    """The module as busybox loads it."""
    command = DECOMPRESSORS.get(file.suffix)
    if command is None:
        raise LabError(f"{file} is compressed in a way the lab does not know")
    return subprocess.run([*command, file], stdout=subprocess.PIPE, check=True).stdout


class Archive:
    """A cpio archive of the kind the kernel reads ("newc")."""

    def __init__(self):
        self.parts = []
        self.count = 0

    def directory(self, name: str) -> None:
        """Adds an empty directory."""
        self.entry(name, 0o040755, b"")

    def program(self, name: str, contents: bytes) -> None:
        """Adds a file that can be run."""
        self.entry(name, 0o100755, contents)

    def entry(self, name: str, mode: int, contents: bytes) -> None:
        """Adds an entry: a header of hexadecimal fields, the name, the contents; each ends on a multiple of four bytes."""
        self.count += 1
        path = name.encode() + b"\0"
        fields = [self.count, mode, 0, 0, 1, 0, len(contents), 0, 0, 0, 0, len(path), 0]
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + path
        self.parts += [head + b"\0" * (-len(head) % 4), contents + b"\0" * (-len(contents) % 4)]

    def whole(self) -> bytes:
        """The finished archive."""
        self.entry("TRAILER!!!", 0, b"")
        return b"".join(self.parts)
