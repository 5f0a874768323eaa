"""Volumes as block devices of the kernel, on Linux 6.18, and the one message on 6.1, which has no ublk. See trials/ublk.py.

The emulator's counts are here: who moves a volume's bytes, and whose memory they lie in.
"""

import json
import os
from pathlib import Path

from scene import SHARE, SceneTest
from tests.support import total
from trial import TrialTest

NODES = range(4)
MODULES = ("--module", "ublk_drv", "--module", "ext4", "--module", "xfs")
MACHINE = ("--kernel", "6.18", "--mem", "768M", *MODULES)

# Of the lines of what each node writes, 16 MiB, those that the copy into the pool has to reach past the caches.
LINES = (16 << 20) // 64 * 98 // 100

# 16 MiB of the device for each node, written and read back by its first CPU, each in an interval of its own.
SCRIPT = r"""
mkdir /tmp/pool
"$1" up --size-per-node 64M /tmp/pool
"$1" volume create /tmp/pool/disk --size 64M >/dev/null
disk=$("$1" volume attach /tmp/pool/disk)
for cpu in 0 2 4 6; do
    taskset -c $cpu sh -c "mark dd if=/dev/zero of=$disk bs=512k count=32 seek=$((16 * cpu)) oflag=direct status=none; exit \$?"
done
for cpu in 0 2 4 6; do
    taskset -c $cpu sh -c "mark dd if=$disk of=/dev/null bs=512k count=32 skip=$((16 * cpu)) iflag=direct status=none; exit \$?"
done
"$1" volume list --json /tmp/pool
"$1" volume detach /tmp/pool/disk >&2
"$1" down /tmp/pool
"""


class Counted(SceneTest):
    """One volume, policy local, and the emulator's counts."""

    def test_each_cpu_moves_bytes_of_its_node(self):
        file = self.directory / "counts.json"
        options = ("--kernel", "6.18", "--module", "ublk_drv", "--count", file, "--timeout", 600)
        done = self.lab(*options, "--", "sh", "-ec", SCRIPT, "sh", self.binary)
        self.assertEqual((done.returncode, done.stderr.splitlines()[-1:]), (0, ["detached /tmp/pool/disk"]), done.stderr)
        # What the filesystem itself says.
        volume = json.loads(done.stdout)["volumes"][0]
        self.assertEqual(volume["nodes"], [{"node": node, "bytes": 16 << 20} for node in NODES])
        intervals = json.loads(file.read_text())["intervals"]
        self.assertEqual(len(intervals), 2 * len(NODES))
        for kind, field, part in (("written", "missed_stores", intervals[:4]), ("read", "missed_loads", intervals[4:])):
            for node in NODES:
                with self.subTest(kind=kind, node=node):
                    rows = part[node]
                    # The server's copy between the pool and its buffers.
                    self.assertGreaterEqual(total(rows, field, mode="user", cpu_node=node, home=node), LINES)
                    # Whatever the CPUs of the node accessed past their caches: dd, the kernel, the server.
                    own = [row for row in rows if row["cpu_node"] == node and row["home"] is not None]
                    accesses = {
                        home: total(own, "missed_loads", home=home) + total(own, "missed_stores", home=home) for home in NODES
                    }
                    share = accesses[node] / sum(accesses.values())
                    print(f"{kind} on node {node}: {share:.2%} local of {sum(accesses.values())}")
                    self.assertGreaterEqual(share, SHARE, accesses)


class Ublk(TrialTest):
    """The trials of trials/ublk.py."""

    def trials(self, name: str, *words, transport: str = "classic") -> None:
        """Those of one class of it."""
        print(self.passes("ublk.py", name, *words, options=MACHINE, transport=transport), end="")

    def test_four_nodes_at_once(self):
        self.trials("FourNodes")

    def test_filesystems_on_it(self):
        sources = os.environ.get("CARGO_HOME", Path.home() / ".cargo")
        found = sorted(Path(sources).glob("registry/src/*/bzip2-sys-*/bzip2-*"))
        if not found:
            self.skipTest("SKIPPED: the sources of bzip2 are not there: cargo fetch")
        self.trials("Filesystems", str(found[-1]))

    def test_its_ends(self):
        self.trials("Ends")

    def test_a_full_pool_and_users(self):
        self.trials("Users", transport="uring")

    def test_on_a_kernel_without_it(self):
        self.passes("ublk.py", "Without", options=("--kernel", "6.1"))
