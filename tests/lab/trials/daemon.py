"""Core affinity's command and its daemon, with a journal of their own."""

import signal
import subprocess

from inside import BINARY
from pool import homenode

JOURNAL = "/tmp/affinity.journal"


def affinity(verb: str, *words) -> subprocess.CompletedProcess:
    """The command, to its end, which has to be good."""
    done = homenode("affinity", verb, "--journal", JOURNAL, *words)
    if done.returncode:
        raise AssertionError(f"affinity {verb}: {done.returncode}: {done.stdout}{done.stderr}")
    return done


class Daemon:
    """`homenode affinity run`, from when it has taken back what another has left."""

    def __init__(self, *words):
        words = [BINARY, "affinity", "run", "--journal", JOURNAL, *words]
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        self.said = [self.process.stderr.readline()]
        while "looking at the machine" not in self.said[-1]:
            self.said.append(self.process.stderr.readline())
            if not self.said[-1]:
                raise AssertionError(f"run ended with {self.process.wait()}")

    def end(self, number: int = signal.SIGTERM) -> str:
        """Ends it; what it said."""
        self.process.send_signal(number)
        said = self.process.communicate()[1]
        expected = 0 if number == signal.SIGTERM else -number
        if self.process.returncode != expected:
            raise AssertionError(f"run ended with {self.process.returncode}: {said}")
        return said
