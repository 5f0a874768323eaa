"""What the lab refuses before it starts anything. No test here boots a guest."""

import unittest

from homenode_lab import machine

from .support import LabTest


class Refused(LabTest):
    """Each has one message, which names what was wrong."""

    def test_nodes_that_do_not_add_up(self):
        told = self.refused("--nodes", "4", "--mem", "512M,256M", "--", "true")
        self.assertIn("--mem 512M,256M has 2 values, and there are 4 nodes", told)
        told = self.refused("--nodes", "2", "--cpus-per-node", "1,1,1", "--", "true")
        self.assertIn("3 values, and there are 2 nodes", told)

    def test_a_node_of_nothing(self):
        self.assertIn("node 4 has neither a CPU nor memory", self.refused("--memory-only", "0M", "--", "true"))
        told = self.refused("--nodes", "2", "--mem", "512M,0M", "--cpus-per-node", "2,0", "--", "true")
        self.assertIn("node 1 has neither a CPU nor memory", told)

    def test_a_node_that_cannot_boot(self):
        self.assertIn("boots on node 0", self.refused("--nodes", "2", "--cpus-per-node", "0,1", "--", "true"))
        self.assertIn("boots on node 0", self.refused("--mem", "64M", "--", "true"))

    def test_devices_of_no_node(self):
        for option in ("--nvme", "--nvdimm", "--net"):
            self.assertIn("on node 4", self.refused(option, "node=4", "--", "true"))
            self.assertIn("give node=N", self.refused(option, "queues=2", "--", "true"))
            self.assertIn("each once", self.refused(option, "node=1,node=2", "--", "true"))
        for option in ("--nvme", "--net"):
            for queues in ("0", "200"):
                told = self.refused(option, f"node=1,queues={queues}", "--", "true")
                self.assertIn(f"has 1 to 64 queues, not {queues}", told)

    def test_a_table_of_queues(self):
        self.assertIn("the card has one: give it queues=2", self.refused("--net", "node=1,queues=1,rss=on", "--", "true"))
        self.assertIn("rss is on or off", self.refused("--net", "node=1,rss=yes", "--", "true"))
        self.assertIn("give node=N", self.refused("--nvme", "node=1,rss=on", "--", "true"))

    def test_devices_of_no_size(self):
        self.assertIn("at least 1M", self.refused("--nvme", "node=1,size=0M", "--", "true"))
        for size in ("0M", "250M"):
            told = self.refused("--nvdimm", f"node=1,size={size}", "--", "true")
            self.assertIn(f"a multiple of 16M, not {size}", told)

    def test_files_of_another_size(self):
        file = self.directory / "memory"
        for path in (file, self.directory):
            told = self.refused("--nvdimm", f"node=1,size=16M,file={path}", "--", "true")
            self.assertIn(f"{path} is no file of 16M", told)
        file.write_bytes(b"short")
        self.assertIn("truncate -s 16M", self.refused("--nvdimm", f"node=1,size=16M,file={file}", "--", "true"))
        self.assertIn("give node=N", self.refused("--nvme", f"node=1,file={file}", "--", "true"))

    def test_distances_of_other_nodes(self):
        file = self.directory / "distances"
        file.write_text("10 20\n20 10\n")
        self.assertIn("4 lines of 4 numbers", self.refused("--distances", file, "--", "true"))
        file.write_text("10 5\n20 10\n")
        self.assertIn("distance 5 from node 0 to 1", self.refused("--nodes", "2", "--distances", file, "--", "true"))
        self.assertIn("No such file", self.refused("--distances", self.directory / "none", "--", "true"))

    def test_cpus_that_cannot_be_offline(self):
        self.assertIn("CPU 0 cannot be offline", self.refused("--offline-cpus", "0", "--", "true"))
        for cpus in ("6-8", "8-9999999999"):
            self.assertIn("CPU 8 cannot be offline", self.refused("--offline-cpus", cpus, "--", "true"))
        for cpus in ("3-1", "1,,2", "two"):
            self.assertIn(f"'{cpus}' is no list of CPUs", self.refused("--offline-cpus", cpus, "--", "true"))

    def test_sizes_and_directories(self):
        self.assertIn("'lots' is no size", self.refused("--mem", "lots", "--", "true"))
        self.assertIn("is no directory", self.refused("--share", "/nowhere", "--", "true"))
        self.assertIn("its directory is not there", self.refused("--count", "/nowhere/counts", "--", "true"))
        self.assertIn("left: ask for less", self.refused("--mem", "900G", "--", "true"))

    def test_an_empty_cache_names_the_remedy(self):
        told = self.refused("--", "true", environment={"HOMENODE_LAB_CACHE": str(self.directory)})
        self.assertIn("the kernel 6.1 is not in", told)
        self.assertIn("run `make lab`", told)

    def test_no_command(self):
        done = self.lab("--nodes", "2")
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no command", done.stderr)


class CpuNumbers(unittest.TestCase):
    """Which CPU is on which node."""

    def test_orders(self):
        self.assertEqual(machine.number_cpus([2, 1, 2], "contiguous"), [0, 0, 1, 2, 2])
        self.assertEqual(machine.number_cpus([2, 1, 3], "interleaved"), [0, 1, 2, 0, 2, 2])
