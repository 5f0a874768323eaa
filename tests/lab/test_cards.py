"""What is told of cards' queues and RSS tables, of kernels' own drivers: see trials/cards.py."""

from trial import TrialTest

MACHINE = ("--net", "node=1,queues=4,rss=on", "--net", "node=2,queues=4", "--source")


class Cards(TrialTest):
    """Its trials, on each kernel."""

    def test_on_6_1(self):
        self.passes("cards.py", options=(*MACHINE, "--kernel", "6.1"))

    def test_on_6_18(self):
        self.passes("cards.py", options=(*MACHINE, "--kernel", "6.18"))
