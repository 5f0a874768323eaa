"""Two disks at home on different nodes, driven through the block layer by io_uring (the example `disks`, which verifies their
data): where their completions arrive is the kernel's word, its list of interrupts. Its words: the program.
"""

import re
import subprocess
import unittest
from pathlib import Path

from pool import BLOCK, MIB, WORDS, run_trials, soon
from wiring import NODE_OF, NODES, disks

PROGRAM = WORDS[0]
BYTES = 4 * MIB
# Of completions, in percent, on the node that submitted.
RIGHT_MIN = 95
# Of requests, in percent: interrupts while completions are polled for.
INTERRUPTS_MAX = 5


def completions(disk: str) -> list[int]:
    """Interrupts of the disk's I/O queues so far, by CPU."""
    name = re.match(r"nvme\d+", disk)[0]
    rows = [line.split() for line in Path("/proc/interrupts").read_text().splitlines()]
    of_disk = [row[1 : len(rows[0]) + 1] for row in rows[1:] if re.fullmatch(rf"{name}q[1-9]\d*", row[-1])]
    return [sum(map(int, column)) for column in zip(*of_disk)]


def drive(cpus: dict[str, list[int]], *options) -> tuple[dict[str, int], dict[str, list[int]]]:
    """Requests of each disk while it is driven from these CPUs, and its interrupts meanwhile by CPU."""
    before = {disk: completions(disk) for disk in cpus}
    words = [f"/dev/{disk}={','.join(map(str, of_disk))}" for disk, of_disk in cpus.items()]
    done = subprocess.run([PROGRAM, *options, str(BYTES), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{words}: {done.stderr}")
    requests = {Path(line.split()[0]).name: int(line.split()[1]) for line in done.stdout.splitlines()}
    return requests, {disk: [new - old for new, old in zip(completions(disk), before[disk])] for disk in cpus}


class Disks(unittest.TestCase):
    """Each disk has an own hardware queue for each CPU that drives it."""

    def setUp(self):
        self.homes = disks()
        self.assertEqual(sorted(self.homes.values()), [1, 3])

    def check_right(self, nodes: dict[str, int]) -> None:
        """Both are driven at once, each from all CPUs of a node."""
        requests, interrupts = drive({disk: NODES[node] for disk, node in nodes.items()})
        for disk, node in nodes.items():
            with self.subTest(disk=disk, node=node):
                right = sum(count for cpu, count in enumerate(interrupts[disk]) if NODE_OF[cpu] == node)
                share = 100 * right / sum(interrupts[disk])
                print(f"{disk} from node {node}: {requests[disk]} requests, {share:.1f} % of completions there")
                self.assertEqual(requests[disk], 2 * BYTES // BLOCK * len(NODES[node]))
                # Completions may share an interrupt.
                self.assertGreater(sum(interrupts[disk]), requests[disk] // 100)
                self.assertGreaterEqual(share, RIGHT_MIN, interrupts)

    def test_from_their_own_nodes(self):
        self.check_right(self.homes)

    def test_from_other_nodes(self):
        first, second = self.homes
        self.check_right({first: self.homes[second], second: 0})

    def test_polled(self):
        Path("/sys/module/nvme/parameters/poll_queues").write_text("4")
        driver = Path("/sys/bus/pci/drivers/nvme")
        # A controller has such queues from when its driver finds it.
        for device in [path.name for path in driver.glob("0*")]:
            (driver / "unbind").write_text(device)
            (driver / "bind").write_text(device)
        polled = [Path(f"/sys/block/{disk}/queue/io_poll") for disk in self.homes]
        soon(lambda: all(path.exists() and path.read_text() == "1\n" for path in polled), "the disks poll")
        homes = disks()
        requests, interrupts = drive({disk: NODES[node] for disk, node in homes.items()}, "--poll")
        for disk in homes:
            self.assertEqual(requests[disk], 2 * BYTES // BLOCK * len(NODES[homes[disk]]))
            print(f"{disk} polled: {requests[disk]} requests, {sum(interrupts[disk])} interrupts")
            self.assertLessEqual(100 * sum(interrupts[disk]), INTERRUPTS_MAX * requests[disk])


if __name__ == "__main__":
    run_trials()
