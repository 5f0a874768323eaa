"""HDFS on a machine of four nodes: DataNodes on nodes 1 and 3, each with a card of four queues and a disk there, and a NameNode with its
client on node 0. Each has a network namespace, and the cards lead to each other. A file of two replicas is uploaded under each way
to place the cards' interrupts. Its words: Java's path of classes.

Interrupts are counted by the kernel. Bytes are those that a DataNode's threads have read by the kernel's account, each sample on the node
where the thread was then: a DataNode reads little but what is uploaded.
"""

import contextlib
import os
import re
import subprocess
import threading
import time
import unittest
from pathlib import Path

import wiring
from inside import BINARY, by_node
from pool import MIB, WORDS, run_trials
from wiring import NODE_OF, NODES, disks, settings

(CLASSES,) = WORDS
PLACE = Path("/tmp/hdfs")
FILE = PLACE / "file"
FILE_MIB = 320
# MiB a second, which leaves CPUs of the home idle: no thread goes where they are full, and emulated ones soon are.
PACE = 4
# Cards in the order of the lab's options: of the DataNodes, and of the NameNode.
NAMES = ["data0", "data1", "names"]
# All that is emulated is slow, and Java most of all.
START_S, UPLOAD_S = 400, 600
SAMPLE_S = 0.2
# In percent, while the daemon finds out who belongs where. Each block has a new thread, which moves in its second period.
INTERRUPTS_MIN, BYTES_MIN = 80, 60
CONFIGURATION = """
fs.defaultFS hdfs://10.76.2.2:9000
hadoop.tmp.dir {place}/tmp
dfs.namenode.name.dir {place}/names
dfs.namenode.http-address 10.76.2.2:0
dfs.namenode.datanode.registration.ip-hostname-check false
dfs.namenode.heartbeat.recheck-interval 600000
dfs.datanode.data.dir file://{place}/data
dfs.datanode.hostname {address}
dfs.datanode.address {address}:9866
dfs.datanode.http.address {address}:0
dfs.datanode.ipc.address {address}:0
dfs.datanode.du.reserved 0
dfs.datanode.round-robin-volume-choosing-policy.additional-available-space 0
dfs.replication 2
dfs.blocksize 33554432
dfs.permissions.enabled false
dfs.client.socket-timeout 300000
dfs.datanode.socket.write.timeout 300000
"""


def within(name: str, *words) -> list[str]:
    """The words of a command in the network namespace of one of them."""
    return ["ip", "netns", "exec", name, *map(str, words)]


def java(name: str, heap: str, *words) -> list[str]:
    """The words of a Java program with the configuration of one of them."""
    # Compilers take longer here than what they compile.
    modes = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", f"-Xmx{heap}"]
    log = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=info", f"-Djava.io.tmpdir={PLACE}"]
    return within(name, "java", *modes, *log, "-cp", f"{PLACE / name}/conf:{CLASSES}", *words)


class Server:
    """A NameNode or DataNode, from when its log says that it is at work."""

    def __init__(self, name: str, main: str, ready: str):
        self.name = name
        self.log = PLACE / name / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(java(name, "256m", main), stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not re.search(ready, text := self.log.read_text()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.end()
                raise AssertionError(f"{name} does not come:\n{text[-3000:]}")
            time.sleep(0.5)

    def read(self) -> dict[tuple[int, int], int]:
        """Bytes that each thread has read, with its CPU."""
        found = {}
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            # A thread that ends has been looked at until shortly before.
            with contextlib.suppress(OSError, ProcessLookupError):
                read = int(re.search(r"^rchar: (\d+)", (task / "io").read_text(), re.MULTILINE)[1])
                cpu = int((task / "stat").read_text().rpartition(")")[2].split()[36])
                found[int(task.name)] = (read, cpu)
        return found

    def end(self) -> None:
        """However it is."""
        self.process.kill()
        self.process.wait()


class Reading(threading.Thread):
    """Looks, until it is told to stop, which node's CPUs read a server's bytes."""

    def __init__(self, server: Server):
        super().__init__(daemon=True)
        self.server, self.stops = server, threading.Event()
        self.nodes: dict[int, int] = {}

    def run(self):
        before = self.server.read()
        while not self.stops.wait(SAMPLE_S):
            now = self.server.read()
            new = [(NODE_OF[cpu], read - before.get(thread, (0, cpu))[0]) for thread, (read, cpu) in now.items()]
            self.nodes = by_node([*self.nodes.items(), *new])
            before |= now


def interrupts_by_node(numbers) -> dict[int, int]:
    """Interrupts of these numbers so far."""
    rows = [line.split() for line in Path("/proc/interrupts").read_text().splitlines()]
    cpus = [int(name[3:]) for name in rows[0]]
    rows = [row for row in rows[1:] if row[0][:-1].isdigit() and int(row[0][:-1]) in numbers]
    return by_node((NODE_OF[cpu], int(count)) for row in rows for cpu, count in zip(cpus, row[1:]))


def percent(nodes: dict[int, int], home: int) -> float:
    """Share of a node."""
    return round(100 * nodes.get(home, 0) / max(1, sum(nodes.values())), 1)


class Hdfs(unittest.TestCase):
    """One cluster, and a test for each question."""

    @classmethod
    def setUpClass(cls):
        PLACE.mkdir()
        Path("/etc/hosts").write_text(f"127.0.0.1 localhost {os.uname().nodename}\n")
        cls.cards, cls.homes = {}, {}
        # The last part of a card's own address is its number.
        cards = {int((path / "address").read_text().rpartition(":")[2], 16): path for path in Path("/sys/class/net").glob("eth*")}
        for number, name in enumerate(NAMES):
            device = (cards[number] / "device").resolve()
            cls.homes[name] = int((device.parent / "numa_node").read_text())
            cls.cards[name] = wiring.interrupts(rf"{device.name}-(in|out)put.*")
            cls.join(number, cards[number].name, name)
        places = {home: disk for disk, home in disks().items()}
        for name in NAMES[:2]:
            disk = f"/dev/{places[cls.homes[name]]}"
            subprocess.run(["mkfs.ext4", "-q", disk], check=True)
            (PLACE / name / "data").mkdir()
            subprocess.run(["mount", disk, PLACE / name / "data"], check=True)
        formatting = java("names", "256m", "org.apache.hadoop.hdfs.server.namenode.NameNode", "-format", "-nonInteractive")
        subprocess.run(formatting, check=True, capture_output=True)
        cls.servers = [Server("names", "org.apache.hadoop.hdfs.server.namenode.NameNode", "NameNode RPC up at")]
        cls.addClassCleanup(lambda: [server.end() for server in cls.servers])
        for name in NAMES[:2]:
            cls.servers.append(Server(name, "StartDataNode", "Successfully sent block report"))
        FILE.write_bytes(os.urandom(MIB) * FILE_MIB)

    @classmethod
    def join(cls, number: int, card: str, name: str) -> None:
        """A card's namespace, and the configuration of who is there."""
        address = f"10.76.{number}.2"
        for words in (
            f"netns add {name}",
            f"link set {card} netns {name}",
            f"-n {name} link set lo up",
            f"-n {name} address add {address}/24 dev {card}",
            f"-n {name} link set {card} up",
            f"-n {name} route add default via 10.76.{number}.1",
        ):
            subprocess.run(["ip", *words.split()], check=True)
        conf = PLACE / name / "conf"
        conf.mkdir(parents=True)
        pairs = [line.split(" ", 1) for line in CONFIGURATION.format(place=PLACE / name, address=address).strip().splitlines()]
        properties = "".join(f"<property><name>{key}</name><value>{value}</value></property>" for key, value in pairs)
        for file in ("core-site.xml", "hdfs-site.xml"):
            (conf / file).write_text(f"<configuration>{properties}</configuration>")

    def place(self, cpus) -> None:
        """The cards' interrupts: `cpus` gives a card's home and a number its CPU."""
        for name, numbers in self.cards.items():
            for place, number in enumerate(sorted(numbers)):
                Path(f"/proc/irq/{number}/smp_affinity_list").write_text(str(cpus(self.homes[name], place)))

    def displace(self) -> None:
        """Puts all threads of the DataNodes on a node without card and disk, where they may leave from."""
        for cpus in (NODES[2], NODE_OF):
            for server in self.servers[1:]:
                for thread in wiring.threads(server.process.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.sched_setaffinity(thread, cpus)
            time.sleep(1)

    def upload(self, name: str) -> dict[str, dict[str, float]]:
        """A file of two replicas: what was at home on each DataNode, in percent."""
        readings = [Reading(server) for server in self.servers[1:]]
        before = {server.name: interrupts_by_node(self.cards[server.name]) for server in self.servers[1:]}
        for reading in readings:
            reading.start()
        begin = time.monotonic()
        words = java("names", "256m", "org.apache.hadoop.fs.FsShell", "-put", "-", f"/{name}")
        errors = PLACE / "errors"
        with errors.open("w") as log, subprocess.Popen(words, stdin=subprocess.PIPE, stderr=log) as client:
            late = threading.Timer(UPLOAD_S, client.kill)
            late.start()
            with FILE.open("rb") as file, contextlib.suppress(BrokenPipeError):
                while part := file.read(MIB):
                    # The first waits until Java is up.
                    due = time.monotonic() + 1 / PACE
                    client.stdin.write(part)
                    client.stdin.flush()
                    time.sleep(max(0, due - time.monotonic()))
            client.communicate()
        late.cancel()
        logs = "\n".join(server.log.read_text()[-3000:] for server in self.servers)
        self.assertEqual(client.returncode, 0, f"{errors.read_text()[:3000]}\n{logs}")
        seconds = time.monotonic() - begin
        shares = {}
        for reading in readings:
            reading.stops.set()
            reading.join()
            server = reading.server.name
            home, now = self.homes[server], interrupts_by_node(self.cards[server])
            made = {node: count - before[server].get(node, 0) for node, count in now.items()}
            self.assertGreater(sum(made.values()), 100, made)
            # The last sample of a thread that ends is missing.
            self.assertGreater(sum(reading.nodes.values()), 0.8 * FILE_MIB * MIB, reading.nodes)
            shares[server] = {"interrupts": percent(made, home), "bytes": percent(reading.nodes, home)}
        print(f"hdfs_upload_home_percent {name}: {shares}, {seconds:.0f} s", flush=True)
        return shares

    def test_uploads_under_each_way_to_place_interrupts(self):
        turns = [cpu for pair in zip(*NODES.values()) for cpu in pair]
        ways = {
            "one-cpu": lambda home, place: 0,
            "by-turns": lambda home, place: turns[place % len(turns)],
            "home-by-hand": lambda home, place: NODES[home][place % len(NODES[home])],
        }
        shares = {}
        self.place(ways["by-turns"])
        before = settings()
        for way, cpus in ways.items():
            self.place(cpus)
            self.displace()
            shares[way] = self.upload(way)["data0"]
        for policy in ("local", "spread", "pack", "single-core"):
            self.place(ways["by-turns"])
            self.displace()
            # It sees the cards of its namespace, and a machine has one.
            words = within("data0", BINARY, "affinity", "run", "--policy", policy, "--journal", "/tmp/journal")
            said = PLACE / "daemon"
            with said.open("w") as log, subprocess.Popen(words, stderr=log) as daemon:
                try:
                    shares[policy] = self.upload(policy)["data0"]
                finally:
                    daemon.terminate()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        daemon.wait(60)
                    daemon.kill()
            self.assertEqual(daemon.returncode, 0, said.read_text())
        self.assertLess(shares["one-cpu"]["interrupts"], 1)
        self.assertLess(shares["by-turns"]["interrupts"], 50)
        self.assertGreater(shares["home-by-hand"]["interrupts"], 95)
        # Where nobody moves threads, the scheduler alone decides how many of their bytes are at home.
        self.assertGreater(shares["local"]["interrupts"], INTERRUPTS_MIN)
        self.assertGreater(shares["local"]["bytes"], BYTES_MIN)
        self.check_bytes("local")
        now = settings()
        self.assertEqual([path for path, text in before.items() if now.get(path, text) != text], [])

    def check_bytes(self, name: str) -> None:
        """The file is what was put."""
        words = java("names", "256m", "org.apache.hadoop.fs.FsShell", "-cat", f"/{name}")
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            with FILE.open("rb") as file:
                while expected := file.read(MIB):
                    self.assertEqual(process.stdout.read(MIB), expected)
            self.assertEqual(process.stdout.read(1), b"")


if __name__ == "__main__":
    run_trials()
