"""What happens when a node's member is full. Its word: where the writers of each node that has CPUs go, nearest first."""

import os
import unittest

from pool import BLOCK, MIB, TRANSPORT, WORDS, Pool, on_node, run_trials

ORDERS = {int(node): order for node, order in WORDS[0].items()}
MEMBER = 16 * MIB
FILE = 2 * MIB
FILES = MEMBER // FILE


class Spilling(unittest.TestCase):
    """A pool of small members on every node."""

    def setUp(self):
        self.pool = Pool("16M", "--transport", TRANSPORT)
        self.addCleanup(self.pool.down)

    def state(self, node: int) -> str:
        """What the monitor thinks of the node's member when no CPU has blocks of it set aside."""
        self.pool.take_grants_back()
        return self.pool.member(node)["state"]

    def home_of_next(self, asking: int, blocks: int = 16) -> set[int]:
        """The nodes that the next blocks of a writer on a node come from."""
        self.pool.take_grants_back()
        with on_node(asking):
            self.assertEqual(self.pool.write("next", blocks, "next"), blocks)
        homes = set(self.pool.map("next"))
        os.truncate(self.pool.directory / "next", 0)
        return homes

    def check_order(self, asking: int, order: list[int]) -> None:
        """The whole pool is filled from one node: each file lies where it has to, and is counted there."""
        expected = [node for node in [asking, *order] for _ in range(FILES)]
        on_home = dict.fromkeys([asking, *order], 0)
        with on_node(asking):
            for number, node in enumerate(expected):
                name = f"{asking}-{number}"
                # By the classic transport each CPU that serves has grants, whose rests would be used up later.
                self.pool.take_grants_back()
                self.assertEqual(self.pool.write(name, FILE // BLOCK, name), FILE // BLOCK)
                homes = self.pool.map(name)
                # A member is fat above 98 %. What is left of each is taken when all are.
                self.assertGreaterEqual(homes.get(node, 0), FILE // 2, f"{name} lies on {homes}")
                self.assertLessEqual(homes.keys(), {asking, *order[: number // FILES + 1]}, f"{name} lies on {homes}")
                for home, count in homes.items():
                    on_home[home] += count
            self.assertEqual(self.pool.write("beyond", 1, "beyond"), 0, "the pool is full")
        status = self.pool.status()
        self.assertEqual({member["home"]: member["used_bytes"] for member in status["members"]}, dict.fromkeys(on_home, MEMBER))
        self.assertEqual(on_home, dict.fromkeys(on_home, MEMBER))
        self.assertEqual(self.pool.witness(f"{asking}-"), {f"{asking}-": on_home})
        written = {(cell["from"], cell["home"]): cell["written_bytes"] for cell in status["accesses"]}
        if TRANSPORT == "uring":
            self.assertEqual(written, {(asking, node): MEMBER for node in on_home})
        self.assertEqual(self.pool.spills(), {(asking, node): MEMBER for node in order})
        spilled = {node["node"]: node["spilled_bytes"] for node in status["nodes"]}
        self.assertEqual(spilled, {node: len(order) * MEMBER if node == asking else 0 for node in on_home})
        for number in range(len(expected)):
            self.pool.verify(f"{asking}-{number}", FILE // BLOCK, f"{asking}-{number}")

    def test_new_writes_come_home_when_space_is_freed(self):
        asking, order = next(iter(ORDERS.items()))
        nearest = order[0]
        blocks = MEMBER // BLOCK
        with on_node(asking):
            # A request at a time, and no CPU has a grant then: what other CPUs have set aside makes a member fat as well.
            for at in range(0, blocks, 16):
                self.pool.take_grants_back()
                self.assertEqual(self.pool.write("filler", 16, "filler", at=at), 16)
            at_home = self.pool.map("filler")[asking] // BLOCK
        # 98 % is 4014.08 of 4096 blocks.
        self.assertEqual(at_home, 4016)
        self.assertEqual(self.state(asking), "fat")
        self.assertEqual(self.home_of_next(asking), {nearest})
        # Only the filler's end lies elsewhere. 95 % is 3891.2 blocks.
        for left, state in ((4014, "fat"), (3892, "fat"), (3891, "candidate")):
            with self.subTest(left=left):
                os.truncate(self.pool.directory / "filler", left * BLOCK)
                self.assertEqual(self.pool.map("filler"), {asking: left * BLOCK})
                self.assertEqual(self.state(asking), state)
                home = asking if state == "candidate" else nearest
                self.assertEqual(self.home_of_next(asking), {home})
        self.pool.verify("filler", 3891, "filler")

    def test_who_finds_a_full_node_does_not_go_to_the_neighbour_of_another(self):
        """Two nodes are full at once, and the writers of each go their own way."""
        blocks = MEMBER // BLOCK
        first, second = list(ORDERS)[:2]
        for node in (first, second):
            with on_node(node):
                self.pool.write(f"filler-{node}", blocks * 98 // 100 + 1, "filler")
            self.assertEqual(self.state(node), "fat")
        for node in (first, second):
            nearest = next(other for other in ORDERS[node] if other not in (first, second))
            self.assertEqual(self.home_of_next(node), {nearest})
        os.unlink(self.pool.directory / f"filler-{first}")
        self.assertEqual(self.home_of_next(first), {first})


def order_test(asking: int, order: list[int]):
    """A test for each node that asks."""
    return lambda test: test.check_order(asking, order)


for node_, order_ in ORDERS.items():
    setattr(Spilling, f"test_from_node_{node_}", order_test(node_, order_))

if __name__ == "__main__":
    run_trials()
