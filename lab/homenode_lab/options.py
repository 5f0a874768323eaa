"""The command line of lab/run."""

import argparse
import os
import re
from dataclasses import dataclass
from pathlib import Path

from . import cache
from .errors import LabError
from .machine import CPUS_MAX, Device, Machine, number_cpus, read_distances

EPILOG = """
SIZE is a number with M or G. A LIST has one value for each node, or one value for all; LIST of CPUs: 3,6-7.
The exit status is the command's (128 + the signal's number if one ended it, 126 or 127 if it could not be run),
124 when it took too long, 125 when the lab failed. docs/lab.md tells more.
"""


@dataclass
class Run:
    """One run of a command in a guest."""

    machine: Machine
    kernel: str
    command: list[str]
    timeout_s: float
    boot_timeout_s: float
    shared: list[Path]
    shown: list[Path]
    modules: list[str]
    source: bool
    count: Path | None
    delay_ns: int
    verbose: bool


def parse(words: list[str]) -> Run:
    """What the command line asks for."""
    parser = make_parser()
    options = parser.parse_args(words)
    # argparse leaves the "--" in, depending on its version.
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("there is no command: lab/run [options] -- COMMAND")
    if options.timeout <= 0 or options.boot_timeout <= 0 or options.delay_ns < 0:
        raise LabError("--timeout and --boot-timeout have to be above zero, and --delay-ns not below")
    if options.count and not os.access(options.count.absolute().parent, os.W_OK):
        raise LabError(f"--count {options.count}: its directory is not there, or cannot be written to")
    if options.source and not options.net:
        raise LabError("--source is at the other end of network cards, and there is none: give --net node=N")
    if options.count and options.count.is_dir():
        raise LabError(f"--count {options.count} is a directory: name a file in it")
    return Run(
        machine=machine(options),
        kernel=options.kernel,
        command=command,
        timeout_s=options.timeout,
        boot_timeout_s=options.boot_timeout,
        shared=[directory(path) for path in options.share],
        shown=[directory(path) for path in options.show],
        modules=options.module,
        source=options.source,
        count=options.count,
        delay_ns=options.delay_ns,
        verbose=options.verbose,
    )


def make_parser() -> argparse.ArgumentParser:
    """The options and their help."""
    parser = argparse.ArgumentParser(
        prog="lab/run",
        usage="%(prog)s [options] -- COMMAND [WORDS]",
        description="Runs a command of this machine in a guest with several NUMA nodes. The guest sees this machine's files; "
        "what it writes is lost, except in shared directories. /tmp is empty there.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--nodes", type=int, default=4, metavar="N", help="nodes with CPUs (default: 4)")
    add("--cpus-per-node", default="2", metavar="LIST", help="CPUs of a node (default: 2)")
    add("--mem", default="512M", metavar="LIST", help="memory of a node (default: 512M)")
    add("--memory-only", action="append", default=[], metavar="SIZE", help="one more node, without CPUs; may be repeated")
    add("--distances", type=Path, metavar="FILE", help="a line of distances for each node (default: 21, 31 without CPUs)")
    add("--cpu-order", choices=["contiguous", "interleaved"], default="contiguous", help="how CPUs are numbered over nodes")
    add("--offline-cpus", default="", metavar="LIST", help="CPUs that are taken offline before the command")
    add("--absent-cpus", type=int, default=0, metavar="N", help="CPUs that are possible and absent, above all others")
    add("--nvme", action="append", default=[], metavar="node=N[,queues=N][,size=SIZE]", help="an NVMe disk; may be repeated")
    add("--nvdimm", action="append", default=[], metavar="node=N[,size=SIZE][,file=FILE]", help="persistent memory; may be repeated")
    add("--net", action="append", default=[], metavar="node=N[,queues=N][,rss=on]", help="a network card; may be repeated (root)")
    add("--source", action="store_true", help="the cards lead to a process that sends to who connects: docs/lab.md")
    add("--kernel", choices=list(cache.KERNELS), default="6.1", help="the guest's kernel (default: 6.1)")
    add("--module", action="append", default=[], metavar="NAME", help="a kernel module to load; may be repeated")
    add("--share", action="append", default=[], metavar="DIR", help="a directory the guest may write to; may be repeated")
    add("--show", action="append", default=[], metavar="DIR", help="a directory below /tmp that the guest sees; may be repeated")
    add("--count", type=Path, metavar="FILE", help="count accesses by CPU and home, and write them there as JSON")
    add("--delay-ns", type=int, default=0, metavar="N", help="a model: remote accesses past the cache take N ns longer")
    add("--timeout", type=float, default=600, metavar="S", help="seconds the command may take (default: 600)")
    add("--boot-timeout", type=float, default=120, metavar="S", help="seconds until a boot is given up (default: 120)")
    add("--verbose", action="store_true", help="show the kernel's log")
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def machine(options: argparse.Namespace) -> Machine:
    """The machine that the options describe."""
    if options.nodes < 1 or options.absent_cpus < 0:
        raise LabError("--nodes has to be above zero, and --absent-cpus not below")
    memory = [mib(size) for size in per_node(options.mem, options.nodes, "--mem")]
    cpus = [number(count, "--cpus-per-node") for count in per_node(options.cpus_per_node, options.nodes, "--cpus-per-node")]
    cpu_nodes = number_cpus(cpus, options.cpu_order)
    if not cpu_nodes:
        raise LabError("--cpus-per-node: no node has a CPU")
    return Machine(
        memory_mib=memory + [mib(size) for size in options.memory_only],
        cpu_nodes=cpu_nodes,
        absent_cpus=options.absent_cpus,
        offline_cpus=cpu_list(options.offline_cpus),
        distances=read_distances(options.distances) if options.distances else [],
        nvme=[device(text, "--nvme", {"node", "queues", "size"}) for text in options.nvme],
        nvdimm=[device(text, "--nvdimm", {"node", "size", "file"}) for text in options.nvdimm],
        net=[device(text, "--net", {"node", "queues", "rss"}) for text in options.net],
    )


def per_node(text: str, nodes: int, option: str) -> list[str]:
    """A value for each node."""
    values = text.split(",")
    if len(values) == 1:
        return values * nodes
    if len(values) != nodes:
        raise LabError(f"{option} {text} has {len(values)} values, and there are {nodes} nodes: give one for each, or one for all")
    return values


def number(text: str, option: str) -> int:
    """A number that is not below zero."""
    if not re.fullmatch(r"\d+", text):
        raise LabError(f"{option}: {text!r} is no number")
    return int(text)


def mib(text: str) -> int:
    """A size in MiB."""
    found = re.fullmatch(r"(\d+)([MG])", text)
    if not found:
        raise LabError(f"{text!r} is no size: write a number with M or G, as 512M")
    return int(found[1]) << (10 if found[2] == "G" else 0)


def cpu_list(text: str) -> list[int]:
    """CPUs as the kernel lists them: 1,4-6."""
    cpus = []
    for part in text.split(",") if text else []:
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if last < first:
            raise LabError(f"{text!r} is no list of CPUs: write it as 1,4-6")
        # Those beyond what a guest can have are all refused alike.
        cpus += range(first, min(last, first + CPUS_MAX) + 1)
    return cpus


def device(text: str, option: str, keys: set[str]) -> Device:
    """A device as node=1,queues=4,size=256M describes it."""
    parts = [part.partition("=")[::2] for part in text.split(",")]
    given = dict(parts)
    if "node" not in given or not given.keys() <= keys or len(given) < len(parts):
        raise LabError(f"{option} {text}: give node=N, and of {', '.join(sorted(keys - {'node'}))} what you want, each once")
    if given.get("rss", "on") not in ("on", "off"):
        raise LabError(f"{option} {text}: rss is on or off")
    return Device(
        node=number(given["node"], option),
        size_mib=mib(given.get("size", "256M")),
        queues=number(given.get("queues", "4"), option),
        file=Path(given["file"]).absolute() if "file" in given else None,
        rss=given.get("rss") == "on",
    )


def directory(path: str) -> Path:
    """A directory that is there, without symbolic links in its path, so that the guest has it in the same place."""
    found = Path(path).resolve()
    if not found.is_dir():
        raise LabError(f"{path} is no directory")
    return found
