"""Where the filesystem's bytes lie on a machine of four nodes, and which CPUs move them: by the word of the emulator, which
sees the addresses, and not of the filesystem. Needs the command: HOMENODE_BINARY, or the one that is built.
"""

import json
import os
import shutil
from pathlib import Path

from tests.support import LAB, LabTest, total

# Of the lines of a file, 16 MiB, that its copy has to reach past the caches: a CPU's cache may hold a few already. What else
# the server accesses is much less than a file.
LINES = (16 << 20) // 64 * 98 // 100
NODES = range(4)

# A file of 16 MiB for each node, written and read back by its first CPU, each in an interval of its own. Past the page cache, so
# that the server moves all bytes.
SCRIPT = r"""
[ "$2" = classic ] || echo Y >/sys/module/fuse/parameters/enable_uring
mkdir /tmp/pool
"$1" up --size-per-node 64M --transport "$2" /tmp/pool
for cpu in 0 2 4 6; do
    taskset -c $cpu sh -c "mark dd if=/dev/zero of=/tmp/pool/$cpu bs=1M count=16 oflag=direct status=none; exit \$?"
done
for cpu in 0 2 4 6; do
    taskset -c $cpu sh -c "mark dd if=/tmp/pool/$cpu of=/dev/null bs=1M iflag=direct status=none; exit \$?"
done
for cpu in 0 2 4 6; do "$1" file map /tmp/pool/$cpu; done
"$1" down /tmp/pool
"""


def command() -> Path | None:
    """The command under test."""
    repository = LAB.parent
    target = Path(os.environ.get("CARGO_TARGET_DIR", repository / "target"))
    named = os.environ.get("HOMENODE_BINARY")
    candidates = [Path(named)] if named else [target / kind / "homenode" for kind in ("release", "debug")]
    return next((path.resolve() for path in candidates if path.is_file()), None)


class Placement(LabTest):
    """A pool over four nodes, mounted."""

    def setUp(self):
        super().setUp()
        binary = command()
        if binary is None:
            self.skipTest("SKIPPED: there is no homenode command: cargo build --release -p homenode-cli, or set HOMENODE_BINARY")
        # Below the test's directory, which the guest sees; the target directory may be below /tmp.
        self.binary = Path(shutil.copy(binary, self.directory))

    def intervals(self, kernel: str, transport: str) -> tuple[list, list]:
        """What was counted while each node's file was written, and while it was read."""
        file = self.directory / "counts.json"
        done = self.lab("--kernel", kernel, "--count", file, "--timeout", 300, "--", "sh", "-ec", SCRIPT, "sh", self.binary, transport)
        self.assertEqual(done.returncode, 0, done.stderr)
        # What the filesystem itself says.
        self.assertEqual([line.split()[:3] for line in done.stdout.splitlines()], [["node", str(n), "16.00"] for n in NODES])
        intervals = json.loads(file.read_text())["intervals"]
        self.assertEqual(len(intervals), 2 * len(NODES))
        return intervals[: len(NODES)], intervals[len(NODES) :]

    def check_homes(self, kernel: str, transport: str) -> tuple[list, list]:
        """Each file's bytes are its writer's node's, whoever moves them."""
        written, read = self.intervals(kernel, transport)
        for node in NODES:
            with self.subTest(node=node):
                self.assertGreaterEqual(total(written[node], "missed_stores", mode="user", home=node), LINES)
                self.assertGreaterEqual(total(read[node], "missed_loads", mode="user", home=node), LINES)
        return written, read

    def test_bytes_lie_with_their_writer_by_the_classic_transport(self):
        self.check_homes("6.1", "classic")

    def test_rings_move_them_on_the_node_too(self):
        written, read = self.check_homes("6.18", "uring")
        for node in NODES:
            for rows, field in ((written[node], "missed_stores"), (read[node], "missed_loads")):
                with self.subTest(node=node, field=field):
                    self.assertGreaterEqual(total(rows, field, mode="user", cpu_node=node, home=node), LINES)
