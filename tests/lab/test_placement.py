"""Where the filesystem's bytes lie on a machine of four nodes, and which CPUs move them: by the word of the kernel and of the
emulator, which sees the addresses, beside that of the filesystem. Needs the command: HOMENODE_BINARY, or the one that is built.
"""

import json

from scene import MIB, SceneTest
from tests.support import total

# Of the lines of a file, 16 MiB, that its copy has to reach past the caches: a CPU's cache may hold a few already. What else
# the server accesses is much less than a file.
LINES = (16 << 20) // 64 * 98 // 100
NODES = range(4)

# A file of 16 MiB for each node, written and read back by its first CPU, each in an interval of its own. Past the page cache, so
# that the server moves all bytes.
SCRIPT = r"""
[ "$2" = classic ] || echo Y >/sys/module/fuse/parameters/enable_uring
mkdir /tmp/pool
"$1" up --size-per-node 64M --data pool --transport "$2" /tmp/pool
for cpu in 0 2 4 6; do
    taskset -c $cpu sh -c "mark dd if=/dev/zero of=/tmp/pool/$cpu bs=1M count=16 oflag=direct status=none; exit \$?"
done
for cpu in 0 2 4 6; do
    taskset -c $cpu sh -c "mark dd if=/tmp/pool/$cpu of=/dev/null bs=1M iflag=direct status=none; exit \$?"
done
for cpu in 0 2 4 6; do "$1" file map /tmp/pool/$cpu; done
"$1" down /tmp/pool
"""


class Counted(SceneTest):
    """A pool over four nodes, mounted, and the emulator's counts."""

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


class Writers(SceneTest):
    """Four writers pinned to four nodes. fio's own `fallocate=native` lays all their files out from one CPU before."""

    def check_writers(self, kernel: str, *arguments, moved_on_node=()) -> None:
        """Each way of writing puts each file on its writer's node, and leaves nothing when it is over."""
        ways = 0
        for facts in self.scene("scene_placement", "--kernel", kernel, arguments=arguments):
            way = facts["what"].partition(" ")[0]
            if way == "tmpfs":
                self.check_stock_tmpfs(facts)
            elif "left" in facts:
                self.check_gone(facts["left"])
            else:
                ways += 1
                homes = {prefix: int(prefix[-1]) for prefix in facts["map"]}
                self.assertEqual(sorted(homes.values()), list(NODES))
                self.check_placed(facts, homes, 16 * MIB)
                if way in moved_on_node:
                    self.check_local(facts, 16 * MIB)
        self.assertEqual(ways, 4 * len([argument for argument in arguments if argument != "tmpfs"]))

    def check_stock_tmpfs(self, facts: dict) -> None:
        """Else the lab would not see bytes that lie elsewhere: laid out by one CPU, they all lie on its node."""
        native = facts["what"] == "tmpfs native"
        homes = {prefix: {0 if native else int(prefix[-1]): 16 * MIB} for prefix in facts["witness"]}
        self.assertEqual(len(homes), 4)
        self.assertEqual(facts["witness"], homes)

    def test_by_rings(self):
        self.check_writers("6.18", "uring", "tmpfs", moved_on_node=["uring"])

    def test_by_the_device(self):
        self.check_writers("6.18", "classic")

    def test_by_the_device_of_an_older_kernel_and_in_the_library(self):
        program = self.program("examples/pinned_writers", "cargo build --release -p homenode --example pinned_writers")
        self.check_writers("6.1", "classic", program, moved_on_node=["library"])
