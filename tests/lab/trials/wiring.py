"""What trials of core affinity look at: what can be set on a machine, and a load that is set on the wrong nodes.

Everything is read from the kernel, or told by the readers of the load (`homenode-bench upload`); nothing from the command.
"""

import json
import os
import re
import select
import subprocess
from pathlib import Path

import inside
from pool import WORDS, soon

BENCH = next(iter(WORDS), None)
NODES = inside.node_cpus()
NODE_OF = {cpu: node for node, cpus in NODES.items() for cpu in cpus}
CARD, CARD_NODE = "eth0", 1
SETTINGS = ("/proc/irq/*/smp_affinity", "/sys/class/net/*/queues/tx-*/xps_cpus", "/sys/class/net/*/queues/rx-*/rps_cpus")
# Bytes a second of a connection and of fio's job: what an emulated machine can do beside looking at itself.
RATE = 4 << 20
# Until every connection of an upload has moved something.
STEADY_S = 120


def disks() -> dict[str, int]:
    """The nodes of the NVMe disks. Which is first the kernel says."""
    names = sorted(path.name for path in Path("/sys/block").glob("nvme*"))
    return {name: int(Path(f"/sys/block/{name}/device/device/numa_node").read_text()) for name in names}


def settings() -> dict[str, str]:
    """Everything that is set of interrupts and queues, as the kernel writes it."""
    found = {}
    for pattern in SETTINGS:
        for path in Path("/").glob(pattern[1:]):
            try:
                found[str(path)] = path.read_text()
            except OSError as error:
                # A card of one queue has no XPS; an interrupt may have gone.
                found[str(path)] = error.strerror
    return found


def interrupts(pattern: str) -> dict[int, str]:
    """Numbers and names of the interrupts whose name is like this."""
    lines = [line.split() for line in Path("/proc/interrupts").read_text().splitlines()[1:]]
    return {int(line[0][:-1]): line[-1] for line in lines if line[0][:-1].isdigit() and re.fullmatch(pattern, line[-1])}


def card_interrupts() -> dict[int, str]:
    """Those of the card, which can be moved."""
    device = os.path.basename(os.readlink(f"/sys/class/net/{CARD}/device"))
    return interrupts(rf"{device}-.*")


def managed_interrupts() -> dict[int, str]:
    """Those of the disks' queues, which the kernel lets nobody move; the first of a disk is of no queue."""
    return interrupts(r"nvme\d+q[1-9]\d*")


def gather(cpu: int) -> None:
    """Puts all interrupts of the card on one CPU."""
    for number in card_interrupts():
        Path(f"/proc/irq/{number}/smp_affinity_list").write_text(str(cpu))


def card_state() -> str:
    """For who has to find out why nothing arrives."""
    told = subprocess.run(["ss", "-tin"], capture_output=True, text=True, check=False).stdout
    device = os.path.basename(os.readlink(f"/sys/class/net/{CARD}/device"))
    lines = [line for line in Path("/proc/interrupts").read_text().splitlines() if device in line]
    return "\n".join([told, *lines, *(f"{path} {text}" for path, text in settings().items() if CARD in path)])


def masks() -> dict[tuple[int, str], frozenset[int]]:
    """The mask of each thread that is no kernel's, by its number and when it started."""
    found = {}
    for task in Path("/proc").glob("[0-9]*/task/[0-9]*"):
        try:
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            kernel_thread = int(fields[6]) & 0x200000
            if not kernel_thread:
                found[int(task.name), fields[19]] = frozenset(os.sched_getaffinity(int(task.name)))
        except (OSError, IndexError):
            continue
    return found


def threads(pid: int) -> list[int]:
    """The threads of a process."""
    return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]


class Load:
    """A process that is ended at the latest with the test."""

    process: subprocess.Popen

    def kill(self) -> None:
        """However it is."""
        self.process.kill()
        self.process.wait()
        for pipe in filter(None, [self.process.stdin, self.process.stdout]):
            pipe.close()


class Upload(Load):
    """The load from the network to the disks, at work."""

    def __init__(self, connections: int, on: list[int], *before):
        words = [*before, BENCH, "upload", f"--connections={connections}", f"--rate={RATE}", f"--on={','.join(map(str, on))}"]
        words += [f"--disk={name}" for name in disks()]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if not select.select([self.process.stdout], [], [], STEADY_S)[0]:
            self.kill()
            raise AssertionError(f"no upload in {STEADY_S} s; what the card has, and its connections:\n{card_state()}")
        if self.process.stdout.readline() != "steady\n":
            raise AssertionError(f"the upload ended with {self.process.wait()}")

    def shares(self, seconds: int = 5) -> dict:
        """Where bytes and completions go for so long."""
        print(seconds, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the upload ended with {self.process.wait()}")
        return json.loads(line)

    def readers(self) -> list[int]:
        """Its threads that read and write."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        return [task for task in threads(self.process.pid) if inside.name_of(tasks / str(task)).startswith("reader-")]

    def end(self) -> None:
        """Has to have lived until now."""
        self.process.stdin.close()
        if status := self.process.wait():
            raise AssertionError(f"the upload ended with {status}")


class Fio(Load):
    """A job of fio on a disk, begun on a CPU. Unless it is to stay there its mask is then that of all."""

    def __init__(self, disk: str, cpu: int, stays: bool = False):
        words = ["taskset", "-c", str(cpu), "fio", f"--name=on-{disk}", f"--filename=/dev/{disk}", "--output=/dev/null"]
        # A thread and no process, which would be one of a session of its own.
        words += ["--thread", "--ioengine=psync", "--direct=1", "--rw=randwrite", "--bs=16k"]
        words += [f"--rate={RATE}", "--time_based", "--runtime=1d"]
        self.process = subprocess.Popen(words)
        soon(lambda: self.written() > 1 << 20, "fio writes")
        if not stays:
            for thread in self.threads():
                os.sched_setaffinity(thread, NODE_OF)

    def threads(self) -> list[int]:
        """All of it."""
        return threads(self.process.pid)

    def written(self) -> int:
        """Bytes."""
        return int(re.search(r"^write_bytes: (\d+)", Path(f"/proc/{self.process.pid}/io").read_text(), re.MULTILINE)[1])

    def end(self) -> None:
        """Has to have lived until now."""
        if self.process.poll() is not None:
            raise AssertionError(f"fio ended with {self.process.returncode}")
        self.process.terminate()
        self.process.wait()
