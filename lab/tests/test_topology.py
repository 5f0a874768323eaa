"""The guest's kernel sees the nodes, CPUs and devices that were asked for. What is read is sysfs: the kernel's word."""

from .support import LabTest

# Where the kernel tells; a name and a value a line.
TELL = r"""
cd /sys/devices/system
for node in node/node*; do
    echo "${node##*/} cpus=$(cat $node/cpulist) distance=$(cat $node/distance | tr ' ' ,) mib=$(awk '/MemTotal/ {print int($4/1024)}' $node/meminfo)"
done
for list in possible present online; do echo "$list $(cat cpu/$list)"; done
for disk in /sys/class/nvme/nvme*; do
    [ ! -e $disk ] || echo "nvme $(cat $disk/serial | tr -d ' ') node=$(cat $disk/device/numa_node) queues=$(ls /sys/block/${disk##*/}n1/mq | wc -l)"
done
for card in /sys/class/net/eth*; do
    [ ! -e $card ] || echo "net node=$(cat $card/device/../numa_node) queues=$(ls -d $card/queues/rx-* | wc -l)"
done
for region in /sys/bus/nd/devices/region*; do
    [ ! -e $region ] || echo "pmem node=$(cat $region/numa_node) mib=$(($(cat $region/size) / 1048576))"
done
"""


class Topology(LabTest):
    """A guest for each shape of machine."""

    def told(self, *options) -> list[str]:
        """What the guest's kernel tells."""
        return self.output(*options, "--", "sh", "-c", TELL).splitlines()

    def nodes(self, lines: list[str]) -> list[tuple[str, str]]:
        """CPUs and distances of each node."""
        return [tuple(word.partition("=")[2] for word in line.split()[1:3]) for line in lines if line.startswith("node")]

    def memory(self, lines: list[str]) -> list[int]:
        """MiB of each node."""
        return [int(line.rpartition("=")[2]) for line in lines if line.startswith("node")]

    def test_each_count_of_nodes(self):
        for count, options in ((1, ()), (2, ("--kernel", "6.18")), (8, ("--cpus-per-node", "1"))):
            with self.subTest(nodes=count):
                lines = self.told("--nodes", count, *options)
                per_node = 1 if "1" in options else 2
                expected = [
                    (
                        str(node) if per_node == 1 else f"{2 * node}-{2 * node + 1}",
                        ",".join("10" if other == node else "21" for other in range(count)),
                    )
                    for node in range(count)
                ]
                self.assertEqual(self.nodes(lines), expected)

    def test_uneven_interleaved_absent_and_offline(self):
        distances = self.directory / "distances"
        distances.write_text("10 20 30 40\n20 10 20 30\n30 20 10 20\n40 30 20 10\n")
        lines = self.told(
            *("--nodes", "3", "--cpus-per-node", "2,3,1", "--mem", "512M,384M,256M", "--memory-only", "256M"),
            *("--cpu-order", "interleaved", "--absent-cpus", "2", "--offline-cpus", "4", "--distances", distances),
        )
        self.assertEqual(
            self.nodes(lines), [("0,3", "10,20,30,40"), ("1,5", "20,10,20,30"), ("2", "30,20,10,20"), ("", "40,30,20,10")]
        )
        # The kernel keeps some of a node's memory to itself.
        for mib, asked in zip(self.memory(lines), (512, 384, 256, 256), strict=True):
            self.assertTrue(asked * 0.6 < mib <= asked, f"{mib} of {asked} MiB")
        self.assertIn("possible 0-7", lines)
        self.assertIn("present 0-5", lines)
        self.assertIn("online 0-3,5", lines)

    def test_devices(self):
        for kernel in ("6.1", "6.18"):
            with self.subTest(kernel=kernel):
                lines = self.told(
                    *("--kernel", kernel, "--nvme", "node=1,queues=8", "--nvme", "node=2,queues=3,size=64M"),
                    *("--nvdimm", "node=3,size=256M", "--nvdimm", "node=0,size=128M", "--net", "node=1,queues=4"),
                )
                self.assertIn("nvme nvme0-node1 node=1 queues=8", lines)
                self.assertIn("nvme nvme1-node2 node=2 queues=3", lines)
                self.assertIn("net node=1 queues=4", lines)
                self.assertIn("pmem node=3 mib=256", lines)
                self.assertIn("pmem node=0 mib=128", lines)
