"""Core affinity on a machine of four nodes: a card of four queues on node 1, disks on nodes 1 and 3, and a load that begins
elsewhere. Its words: the load's program; irqbalance, and where its libraries are.
"""

import contextlib
import os
import re
import signal
import subprocess
import time
import unittest
from pathlib import Path

import wiring
from daemon import JOURNAL, Daemon, affinity
from inside import BINARY, wait
from pool import WORDS, run_trials
from wiring import CARD_NODE, NODE_OF, NODES, Fio, Upload, disks, gather, masks, settings

IRQBALANCE, LIBRARIES = WORDS[1:]
# CPUs of nodes without a device, one of each in turn.
FAR = [NODES[0][0], NODES[2][0], NODES[0][1], NODES[2][1]]
# What has to be right, in percent: of received bytes, and of completions.
BYTES_MIN, COMPLETIONS_MIN = 90, 95
# What a load on wrong nodes has at most: one of two readers may have woken where its packets are.
BYTES_WRONG_MAX = 60
# Until a daemon has moved something, traced or not: all that is emulated is slow.
MOVED_S = 60
# Dwell times and periods until everything is in its place again.
RESET_S = 30
CPUS = Path("/sys/devices/system/cpu")
GROUPS = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def traced(*words):
    """A command under strace: what it writes to, in a file."""
    log = Path("/tmp/trace")
    log.unlink(missing_ok=True)
    traces = ["strace", "-f", "--seccomp-bpf", "-y", "-qq", "-e", "trace=openat,write,pwrite64,writev", "-o", str(log)]
    with subprocess.Popen([*traces, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process, log
        finally:
            process.kill()


def written(log: Path) -> set[str]:
    """The files that a traced command has opened for writing, or written to."""
    text = log.read_text(errors="replace")
    opened = re.findall(r'openat\([^,]*, "([^"]+)", [^,)]*O_(?:WRONLY|RDWR)', text)
    return set(opened) | set(re.findall(r"\b(?:write|pwrite64|writev)\(\d+<([^>]+)>", text))


class Affinity(unittest.TestCase):
    """Everything is as it was before when a test ends."""

    def setUp(self):
        self.homes = disks()
        self.assertEqual(sorted(self.homes.values()), [1, 3])
        self.near, self.far = sorted(self.homes, key=self.homes.get)
        gather(NODES[0][0])
        self.before, self.masks = settings(), masks()

    def running(self, load):
        """A load that ends with the test."""
        self.addCleanup(load.kill)
        # These are what has to be as before.
        self.masks = masks()
        return load

    def load(self, connections: int = 2) -> Upload:
        """Everything on wrong nodes, with nobody's mask: fio on both disks, and an upload to them."""
        for disk, cpu in ((self.near, NODES[2][1]), (self.far, NODES[0][1])):
            self.running(Fio(disk, cpu))
        return self.running(Upload(connections, FAR))

    def load_on_wrong_nodes(self) -> tuple[Upload, dict]:
        """A load, and its shares before anybody moves it. Nobody binds its readers: both may have woken where their packets are, and it begins again."""
        upload = self.load()
        for _ in range(5):
            before = upload.shares()
            if before["received_right_percent"] <= BYTES_WRONG_MAX:
                break
            upload.kill()
            upload = self.running(Upload(2, FAR))
        return upload, before

    def check_right(self, shares: dict, before: dict) -> None:
        """Bytes are processed where they are read, as they were not before, and completions arrive where they were submitted."""
        self.assertLessEqual(before["received_right_percent"], BYTES_WRONG_MAX, before)
        self.assertGreaterEqual(shares["received_right_percent"], BYTES_MIN, shares)
        self.assertGreaterEqual(shares["completions_right_percent"], COMPLETIONS_MIN, shares)

    def check_restored(self, below: str = "/") -> None:
        """Every value is what it was, of everyone who is still there; and nobody else has got one of ours."""
        now = {path: text for path, text in settings().items() if path.startswith(below)}
        self.assertEqual({path: text for path, text in now.items() if self.before.get(path) != text}, {})
        # Who has come since may run anywhere.
        changed = {thread: mask for thread, mask in masks().items() if self.masks.get(thread, frozenset(NODE_OF)) != mask}
        self.assertEqual(changed, {}, f"before: {self.masks}")
        self.assertFalse(Path(JOURNAL).exists(), "the journal is left")

    def is_changed(self) -> bool:
        """Whether a thread of the load has another mask than before."""
        now = masks()
        return any(now.get(thread, mask) != mask for thread, mask in self.masks.items())

    def test_what_is_misplaced_is_put_right_and_back(self):
        upload, before = self.load_on_wrong_nodes()
        said = affinity("apply").stdout
        after = upload.shares()
        print(f"\nbefore: {before}\nafter: {after}\n{said}")
        self.check_right(after, before)
        # A disk's queue for each CPU completes where it was submitted anyhow; to the disk threads have to come.
        self.assertGreater(after["completions_home_percent"], before["completions_home_percent"])
        self.assertTrue(self.is_changed())
        managed = {path for path in self.before if any(f"/irq/{number}/" in path for number in wiring.managed_interrupts())}
        self.assertEqual(len(managed), 16)
        self.assertEqual({path: settings()[path] for path in managed}, {path: self.before[path] for path in managed})
        affinity("revert")
        self.check_restored()
        upload.end()

    def test_managed_interrupts_are_never_written_to(self):
        self.load()
        with traced(BINARY, "affinity", "run", "--journal", JOURNAL) as (process, log):
            wait(self.is_changed, "run moves something", MOVED_S)
            # It goes on looking.
            time.sleep(20)
            os.kill(int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()), signal.SIGTERM)
            said = process.communicate()[0]
        self.assertEqual(process.returncode, 0, said)
        paths = written(log)
        # It has written something that can be moved, so the trace shows what it writes.
        self.assertTrue([path for path in paths if re.search(r"/proc/irq/|/xps_cpus", path)], paths)
        for number in wiring.managed_interrupts():
            self.assertEqual([path for path in paths if path.startswith(f"/proc/irq/{number}/")], [])
        self.check_restored()

    def test_cpusets_and_the_masks_of_others_are_kept(self):
        (GROUPS / "cgroup.subtree_control").write_text("+cpuset")
        group = GROUPS / "box"
        group.mkdir()
        self.addCleanup(group.rmdir)
        inside = frozenset(NODES[2])
        (group / "cpuset.cpus").write_text(",".join(map(str, inside)))
        enter = ("sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh")
        pinned = self.running(Fio(self.near, NODES[0][1], stays=True))
        upload = self.running(Upload(2, NODES[2], *enter))
        before, daemon = upload.shares(), Daemon()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            for thread in upload.readers():
                self.assertLessEqual(frozenset(os.sched_getaffinity(thread)), inside)
            for thread in pinned.threads():
                self.assertEqual(os.sched_getaffinity(thread), {NODES[0][1]})
            time.sleep(0.1)
        after = upload.shares()
        print(f"\nin a cpuset, before: {before}\nafter: {after}")
        # What may move has come to it.
        self.check_right(after, before)
        self.assertEqual(daemon.process.poll(), None)
        daemon.end()
        self.check_restored()
        upload.end()
        pinned.end()

    def test_interrupts_are_irqbalances_while_it_runs(self):
        self.load()
        balancer = subprocess.Popen([IRQBALANCE, "--foreground"], env={**os.environ, "LD_LIBRARY_PATH": LIBRARIES})
        self.addCleanup(balancer.communicate)
        self.addCleanup(balancer.kill)
        with traced(BINARY, "affinity", "apply", "--journal", JOURNAL) as (process, log):
            said = process.communicate()[0]
        self.assertIn("irqbalance", said)
        self.assertEqual([path for path in written(log) if path.startswith("/proc/irq/")], [])
        # The rest goes on.
        self.assertTrue(self.is_changed(), said)
        self.assertEqual(balancer.poll(), None)
        affinity("revert")
        # Interrupts are where irqbalance has put them.
        self.check_restored("/sys")

    def test_cpus_that_go_between_plan_and_act(self):
        self.load()
        # The journal is made durable between the two.
        words = ("strace", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync")
        words += ("-e", "inject=fsync,fdatasync:delay_enter=5000000")
        with subprocess.Popen(
            [*words, BINARY, "affinity", "apply", "--journal", JOURNAL], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            wait(lambda: Path(JOURNAL).exists() and Path(JOURNAL).stat().st_size, "the plan is in the journal", MOVED_S)
            gone = NODES[CARD_NODE]
            for cpu in gone:
                (CPUS / f"cpu{cpu}/online").write_text("0")
            said = process.communicate()[0]
        self.assertIn(process.returncode, (0, 1), said)
        self.assertNotIn("panicked", said)
        print(f"\nwithout the CPUs {gone}: {process.returncode}: {said}")
        for mask in masks().values():
            self.assertTrue(mask - set(gone), "a thread has no CPU that runs")
        for cpu in gone:
            (CPUS / f"cpu{cpu}/online").write_text("1")
        affinity("revert")
        now = masks()
        self.assertEqual({thread: mask for thread, mask in now.items() if self.masks.get(thread, mask) != mask}, {})

    def test_cpus_that_go_and_come_back_under_a_daemon(self):
        def cycle(seconds: int) -> None:
            for state in ("0", "1"):
                for cpu in NODES[CARD_NODE]:
                    (CPUS / f"cpu{cpu}/online").write_text(state)
                time.sleep(seconds)

        # The kernel takes interrupts off these CPUs, and the card's driver sets all of its own and XPS anew: also without us.
        cycle(1)
        self.before = settings()
        upload = self.load()
        before, daemon = upload.shares(), Daemon()
        wait(self.is_changed, "run moves something", MOVED_S)
        cycle(RESET_S)
        after = upload.shares()
        print(f"\nafter CPUs came back, before: {before}\nafter: {after}")
        self.assertGreaterEqual(after["received_right_percent"], BYTES_MIN, after)
        self.assertGreater(after["completions_home_percent"], before["completions_home_percent"])
        said = daemon.end()
        self.assertIn("taken up again", said)
        self.check_restored()
        upload.end()

    def test_a_daemon_that_is_killed_is_reverted_by_the_command(self):
        self.load()
        daemon = Daemon()
        wait(self.is_changed, "run moves something", MOVED_S)
        daemon.end(signal.SIGKILL)
        self.assertTrue(self.is_changed())
        affinity("revert")
        self.check_restored()

    def test_a_daemon_that_is_killed_is_reverted_by_the_next(self):
        self.load()
        daemon = Daemon()
        wait(self.is_changed, "run moves something", MOVED_S)
        daemon.end(signal.SIGKILL)
        self.assertTrue(self.is_changed())
        # It moves nothing as long as this looks.
        daemon = Daemon("--period", "3600")
        self.addCleanup(daemon.process.kill)
        self.check_restored()
        self.assertIn("an earlier run has left changes", "".join(daemon.said))
        daemon.end()
        self.check_restored()


if __name__ == "__main__":
    run_trials()
