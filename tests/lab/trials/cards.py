"""What `homenode affinity` tells of network cards, beside what the kernel tells (card.py): of a card that has an RSS table, and of
another that has none. Nothing of homenode changes them.
"""

import json
import subprocess
import sys
import time
import unittest
from collections import Counter
from pathlib import Path

import card
from daemon import JOURNAL, affinity
from inside import run, wait
from pool import run_trials


def named(number: int) -> str:
    """The name of a card of the lab, which the kernel gives, by its own address."""
    cards = Path("/sys/class/net").glob("eth*")
    return next(path.name for path in cards if (path / "address").read_text().strip() == f"52:54:00:76:00:{number:02x}")


CARD, PLAIN = named(0), named(1)
# Takes 4 MiB a second from a card's source.
TAKER = "import socket, sys; it = socket.create_connection((sys.argv[1], 7600)); it.sendall(b'4194304\\n')\nwhile it.recv(1 << 16): pass"


def found() -> dict:
    """Everything that is set of the cards, as the kernel has it."""
    return {name: (card.queues(name), card.spread(name)) for name in (CARD, PLAIN)}


def told() -> dict:
    """What the command tells: queues, most queues, and entries of the table by queue."""
    cards = json.loads(affinity("plan", "--json").stdout)["cards"]
    return {one["device"]: (one["queues"], one["queues_max"], one["rss_entries"]) for one in cards}


class Cards(unittest.TestCase):
    """Four queues each, and a table that nobody has set, before and after each test."""

    def setUp(self):
        self.addCleanup(self.reset)
        self.reset()

    @staticmethod
    def reset() -> None:
        card.set_table(CARD, [])
        for name in (CARD, PLAIN):
            card.set_queues(name, 4)
        card.set_table(CARD, [])

    def test_numbers_and_tables_are_told_as_the_kernel_has_them(self):
        for queues, over in ((4, []), (4, [2]), (2, [1]), (3, [0, 2])):
            with self.subTest(queues=queues, over=over):
                self.reset()
                card.set_queues(CARD, queues)
                card.set_table(CARD, [over[index % len(over)] for index in range(128)] if over else [])
                entries = {str(queue): number for queue, number in Counter(card.table(CARD)).items()}
                self.assertEqual(told(), {CARD: (queues, 4, entries), PLAIN: (4, 4, {})})

    def test_apply_changes_neither(self):
        card.set_queues(CARD, 2)
        card.set_table(CARD, [1, 0, 1, 1] * 32)
        before = found()
        affinity("apply")
        self.assertEqual(found(), before)
        affinity("revert")
        self.assertEqual(found(), before)
        self.assertFalse(Path(JOURNAL).exists(), "the journal is left")

    def explained(self, number: int, through: list[str]) -> str:
        """What the command says of a program that receives through a card."""
        taker = subprocess.Popen([*through, sys.executable, "-c", TAKER, f"10.76.{number}.1"])
        try:
            time.sleep(3)
            self.assertIsNone(taker.poll())
            return affinity("explain", taker.pid, "--period", "3").stdout
        finally:
            taker.kill()
            taker.wait()

    def test_what_a_card_of_another_network_namespace_brings_is_of_no_card_here(self):
        self.assertNotIn("compute-bound", self.explained(0, []))
        run("ip", "netns", "add", "elsewhere")
        # The card comes back when the namespace has gone.
        self.addCleanup(wait, Path(f"/sys/class/net/{PLAIN}").exists, f"{PLAIN} is here")
        self.addCleanup(run, "ip", "netns", "del", "elsewhere")
        run("ip", "link", "set", PLAIN, "netns", "elsewhere")
        run("ip", "-n", "elsewhere", "address", "add", "10.76.1.2/24", "dev", PLAIN)
        run("ip", "-n", "elsewhere", "link", "set", PLAIN, "up")
        self.assertIn("compute-bound: it moves no bytes", self.explained(1, ["ip", "netns", "exec", "elsewhere"]))


if __name__ == "__main__":
    run_trials()
