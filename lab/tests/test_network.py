"""Network cards that lead to a source: what is sent arrives, through queues that depend on the receiver's CPU."""

import ast
from unittest import mock

from homenode_lab import guest, options
from homenode_lab.errors import LabError

from .support import LabTest

# For each card and CPU: what is received of its source there, and which of the card's queues were interrupted meanwhile.
RECEIVE = r"""
import os, re, socket
def arrivals():
    lines = [line.split() for line in open("/proc/interrupts")][1:]
    return {line[-1]: sum(map(int, line[1:1 + os.cpu_count()])) for line in lines if "-input." in line[-1]}
for card in sorted(os.listdir("/sys/class/net")):
    if card == "lo":
        continue
    number = int(open(f"/sys/class/net/{card}/address").read().split(":")[-1], 16)
    device = os.path.basename(os.readlink(f"/sys/class/net/{card}/device"))
    for cpu in range(os.cpu_count()):
        os.sched_setaffinity(0, {cpu})
        before, received = arrivals(), 0
        with socket.create_connection((f"10.76.{number}.1", 7600)) as source:
            source.sendall(b"0\n")
            while received < 4 << 20:
                received += len(source.recv(1 << 20))
        after = arrivals()
        used = {name: after[name] - before[name] for name in after if name.startswith(f"{device}-") and after[name] > before[name]}
        node = int(open(f"/sys/class/net/{card}/device/../numa_node").read())
        print({"card": number, "node": node, "cpu": cpu, "received": received, "most": max(used, key=used.get)})
"""


class Network(LabTest):
    """Guests whose cards lead somewhere."""

    def received(self, *words) -> list[dict]:
        """What a guest of two nodes tells."""
        told = self.output("--nodes", 2, *words, "--source", "--", "python3", "-c", RECEIVE)
        return [ast.literal_eval(line) for line in told.splitlines()]

    def test_cpus_receive_through_several_queues(self):
        for kernel in ("6.1", "6.18"):
            with self.subTest(kernel=kernel):
                told = self.received("--kernel", kernel, "--net", "node=1,queues=4")
                self.assertEqual([(fact["node"], fact["cpu"]) for fact in told], [(1, cpu) for cpu in range(4)])
                # Mostly each its own; but a queue that its first packets came by, answered where they arrive, may keep a flow.
                self.assertGreater(len({fact["most"] for fact in told}), 1, told)
                self.assertGreaterEqual(min(fact["received"] for fact in told), 4 << 20)

    def test_a_table_spreads_flows(self):
        # Every entry of the table has the last queue, as ioctls of linux/ethtool.h have it (ETHTOOL_SRXFHINDIR).
        steer = r"""
import array, fcntl, os, socket, struct
def ask(*words):
    words = array.array("I", words)
    fcntl.ioctl(socket.socket(), 0x8946, struct.pack("16sP", b"eth0", words.buffer_info()[0]))
    return words
entries = ask(0x38, 0)[1]
ask(0x39, entries, *[3] * entries)
print({"entries": entries})
"""
        for kernel in ("6.1", "6.18"):
            with self.subTest(kernel=kernel):
                words = ("--nodes", 2, "--kernel", kernel, "--net", "node=1,queues=4,rss=on", "--source")
                told = self.output(*words, "--", "python3", "-c", steer + RECEIVE)
                table, *facts = [ast.literal_eval(line) for line in told.splitlines()]
                self.assertEqual(table, {"entries": 128})
                self.assertEqual({fact["most"].partition("-")[2] for fact in facts}, {"input.3"})

    def test_cards_have_sources_of_their_own(self):
        told = self.received("--net", "node=1,queues=1", "--net", "node=0,queues=2")
        self.assertEqual({(fact["card"], fact["node"]) for fact in told}, {(0, 1), (1, 0)})


class Refused(LabTest):
    """What a source needs. No test here boots a guest."""

    def setUp(self):
        super().setUp()
        self.job = options.parse(["--net", "node=1", "--source", "--", "true"])

    def told(self) -> str:
        """Why there is no source."""
        with self.assertRaises(LabError) as raised:
            guest.start_source(self.job)
        return str(raised.exception)

    def test_without_ip(self):
        with mock.patch.object(guest, "SOURCE_PATH", "/nowhere"):
            self.assertIn("there is no ip on this machine: apt-get install iproute2", self.told())

    def test_without_root(self):
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        with mock.patch.object(guest, "DIES_WITH_US", nobody):
            self.assertRegex(self.told(), "could not be made: .*not permitted.* It needs root and /dev/net/tun")

    def test_without_a_card(self):
        self.assertIn("there is none: give --net", self.refused("--source", "--", "true"))
