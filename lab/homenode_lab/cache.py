"""Where the lab keeps what it has fetched and built. Nothing of it is in the repository or among the host's packages.

A thing is in the cache when its final name is there: whatever makes it works under a name that starts with a dot, and
renames it when it is whole.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from .errors import LabError

SOURCES = Path(__file__).resolve().parent.parent

# Programs of the lab: what they are built from, below lab/. All share guest/mark.h.
PROGRAMS = {
    "agent": "guest/agent.c",
    "mark": "guest/mark.c",
    "counter.so": "counter/counter.c",
}

# The kernels of the guests: the start of the version, and the suite of Debian that has it.
KERNELS = {"6.1": "bookworm", "6.12": "trixie", "6.18": "trixie-backports"}

HINT = "run `make lab`"


def root() -> Path:
    """The directory of the cache; it need not exist yet."""
    named = os.environ.get("HOMENODE_LAB_CACHE") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    # One of its own, wherever that is: what is not whole in it is removed.
    return Path(named).absolute() / "homenode-lab"


def tools() -> Path:
    """Unpacked packages that the host lacks."""
    return root() / "tools"


def guest_tools() -> Path:
    """The same, of packages for guests alone."""
    return root() / "guest-tools"


def program(name: str) -> Path:
    """Where a program of the lab is built to. The name holds a hash of the source: an outdated one is not found."""
    source = (SOURCES / PROGRAMS[name]).read_bytes() + (SOURCES / "guest/mark.h").read_bytes()
    digest = hashlib.sha256(source).hexdigest()[:12]
    stem, dot, suffix = name.partition(".")
    return root() / "programs" / f"{stem}-{digest}{dot}{suffix}"


def require(path: Path, what: str) -> Path:
    """The path, if it is there."""
    if not path.exists():
        raise LabError(f"{what} is not in {root()}: {HINT}")
    return path


def tool(name: str) -> Path:
    """A program that was unpacked into the cache because the host has no such package, else the host's."""
    own = [base / place for base in (tools(), guest_tools()) for place in ("usr/bin", "bin", "usr/sbin", "sbin")]
    hosts = [Path(place) for place in os.environ.get("PATH", "").split(os.pathsep) + ["/usr/sbin", "/sbin"] if place]
    for place in own + hosts:
        if os.access(place / name, os.X_OK):
            return place / name
    raise LabError(f"there is no {name} on this machine or in {root()}: {HINT}")


def tool_environment(path: Path) -> dict[str, str]:
    """The environment a tool runs in: one from the cache finds its libraries there."""
    environment = dict(os.environ)
    for base in (tools(), guest_tools()):
        if path.is_relative_to(base):
            libraries = [base / "usr/lib/x86_64-linux-gnu", base / "lib/x86_64-linux-gnu"]
            environment["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, libraries))
    return environment


class Kernel:
    """An unpacked Debian kernel."""

    def __init__(self, directory: Path):
        places = [*directory.glob("lib/modules/*"), *directory.glob("usr/lib/modules/*")]
        if not places:
            raise LabError(f"{directory} holds no kernel modules: remove it and {HINT}")
        self.modules = places[0]
        self.version = self.modules.name
        # Newer packages keep the image beside the modules.
        beside = self.modules / "vmlinuz"
        self.image = beside if beside.exists() else directory / "boot" / f"vmlinuz-{self.version}"


def kernel_directory(name: str) -> Path:
    """Where the kernel of that name is unpacked to."""
    return root() / "kernels" / name


def kernel(name: str) -> Kernel:
    """The unpacked kernel of that name."""
    if name not in KERNELS:
        raise LabError(f"there is no kernel {name} in the lab: take one of {', '.join(KERNELS)}")
    return Kernel(require(kernel_directory(name), f"the kernel {name}"))


@contextlib.contextmanager
def staged(final: Path):
    """A directory to make something in. It becomes `final` when the block ends well, and is removed otherwise."""
    final.parent.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    try:
        stage.chmod(0o755)
        yield stage
        stage.rename(final)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


@contextlib.contextmanager
def locked(name: str, waiting_for: str):
    """Holds a lock of the cache; says so on standard error when it has to wait."""
    root().mkdir(parents=True, exist_ok=True)
    with open(root() / f"{name}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"lab: waiting for {waiting_for}", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
