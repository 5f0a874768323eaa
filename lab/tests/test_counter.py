"""The counter against accesses whose homes the kernel's memory policy decides."""

from .support import LabTest, total

LARGE = 8 << 20
SMALL = 64 << 10
LINE = 64
PAGE = 4096

# On a vCPU, next to the accesses of a test, the program's stack and the kernel's ticks.
TOLERANCE = 0.01


class Counter(LabTest):
    """touch.c, on the CPUs of one node, uses memory of another."""

    def setUp(self):
        super().setUp()
        self.touch = self.compiled("touch")

    def touched(self, kind: str, nodes, cpu: int, *options) -> tuple[list, list[int]]:
        """The intervals, and the microseconds each took."""
        # The shell forks on that CPU, so that what the kernel keeps of the program is on its node.
        script = " ".join(map(str, [self.touch, kind, *nodes])) + "; exit $?"
        counted, written = self.counted(*options, "--", "taskset", "-c", cpu, "sh", "-c", script)
        self.assertEqual(len(counted["intervals"]), len(nodes))
        return counted["intervals"], [int(line) for line in written.split()]

    def about(self, value: int, expected: int):
        """Within the tolerance."""
        self.assertTrue(abs(value - expected) <= expected * TOLERANCE, f"{value}, expected {expected}")

    def check_homes(self, nodes, cpu: int, *options):
        """Loads of each node's memory are counted as that node's, and nowhere else."""
        intervals, _ = self.touched("load", nodes, cpu, *options)
        for node, rows in zip(nodes, intervals, strict=True):
            with self.subTest(node=node):
                self.about(total(rows, "loads", cpu=cpu, mode="user", home=node), LARGE // 8)
                self.about(total(rows, "loads", cpu=cpu, mode="user"), LARGE // 8)
                self.assertEqual(total(rows, "loads", mode="user"), total(rows, "loads", cpu=cpu, mode="user"))

    def test_homes_of_even_nodes(self):
        self.check_homes(range(4), 2)

    def test_homes_of_uneven_nodes_and_persistent_memory(self):
        self.check_homes(
            range(4), 1, "--nodes", "3", "--mem", "512M,256M,384M", "--memory-only", "256M",
            "--cpu-order", "interleaved", "--nvdimm", "node=1", "--absent-cpus", "1",
        )

    def test_homes_on_both_sides_of_the_hole_below_four_gigabytes(self):
        self.check_homes(range(4), 0, "--kernel", "6.18", "--mem", "512M,512M,2G,1G")

    def test_homes_of_eight_nodes(self):
        self.check_homes(range(8), 7, "--nodes", "8", "--cpus-per-node", "1", "--mem", "256M")

    def test_stores(self):
        for node, rows in enumerate(self.touched("store", range(3), 2)[0]):
            self.about(total(rows, "stores", cpu=2, cpu_node=1, mode="user", home=node), LARGE // 8)
            self.about(total(rows, "store_bytes", cpu=2, mode="user", home=node), LARGE)
            self.about(total(rows, "missed_stores", cpu=2, mode="user", home=node), LARGE // LINE)

    def test_kernel_copies(self):
        on_node = dict(zip((1, 2), self.touched("read", (1, 2), 2)[0], strict=True))
        for node, other in ((1, 2), (2, 1)):
            with self.subTest(node=node):
                rows = on_node[node]
                self.assertGreaterEqual(total(rows, "load_bytes", cpu=2, mode="kernel", home=node), LARGE)
                # The buffer that is read into is the program's, on node 1 where it runs.
                self.assertGreaterEqual(total(rows, "store_bytes", cpu=2, mode="kernel", home=1), LARGE)
                # The kernel's own structures are where they are, and some miss in any case: how many differs from boot to boot,
                # and not with the file's home. What moves with the file is its lines, and a line of `struct page` for each page.
                moved = [total(on_node[at], "missed_loads", cpu=2, mode="kernel", home=node) for at in (node, other)]
                self.about(moved[0] - moved[1], LARGE // LINE + LARGE // PAGE)

    def test_the_cache_filters_what_is_used_again(self):
        (rows,) = self.touched("again", [2], 2)[0]
        self.about(total(rows, "loads", cpu=2, mode="user", home=2), LARGE // 8)
        # All lines once, and some again that the kernel's ticks pushed out.
        self.assertLess(total(rows, "missed_loads", cpu=2, mode="user", home=2), 4 * SMALL // LINE)
        (rows,) = self.touched("load", [2], 2)[0]
        self.about(total(rows, "missed_loads", cpu=2, mode="user", home=2), LARGE // LINE)

    def test_lines_that_share_a_place_push_each_other_out_of_the_direct_mapped_cache_only(self):
        (rows,) = self.touched("turns", [2], 2)[0]
        self.assertGreaterEqual(total(rows, "direct_missed_loads", cpu=2, mode="user", home=2), 2 * LARGE // SMALL)
        self.assertLess(total(rows, "missed_loads", cpu=2, mode="user", home=2), 10)

    def test_persistent_memory(self):
        for node in (0, 2):
            counted, _ = self.counted(
                *("--nvdimm", f"node={node}", "--mem", "512M,256M,256M,256M", "--"),
                *("sh", "-c", "exec taskset -c 2 mark dd if=/dev/pmem0 of=/dev/null bs=1M count=16 iflag=direct 2>/dev/null"),
            )
            (rows,) = counted["intervals"]
            self.assertGreaterEqual(total(rows, "load_bytes", cpu=2, mode="kernel", home=node), 16 << 20)
            self.assertLess(total(rows, "load_bytes", cpu=2, mode="kernel", home=None), 1 << 20)

    def test_the_model_delays_remote_accesses_past_the_cache(self):
        delay_ns = 5000
        least_us = LARGE // LINE * delay_ns // 1000
        _, (local, remote) = self.touched("load", (1, 2), 2, "--delay-ns", delay_ns)
        self.assertGreater(remote, least_us)
        self.assertLess(local, least_us / 2)
        _, (again,) = self.touched("again", [2], 2, "--delay-ns", delay_ns)
        self.assertLess(again, least_us / 2)

    def test_the_command_as_a_whole(self):
        counted, _ = self.counted("--", "mark", "true")
        self.assertEqual(counted["cpu_nodes"], [0, 0, 1, 1, 2, 2, 3, 3])
        self.assertGreater(total(counted["command"], "loads"), total(counted["intervals"][0], "loads"))
        self.assertGreater(total(counted["intervals"][0], "loads", mode="kernel"), 0)
