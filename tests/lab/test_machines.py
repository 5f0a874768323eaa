"""Pools on machines of many shapes: a writer on each node, and where its bytes lie by the command's word and the kernel's."""

from scene import MIB, SceneTest

FILE_BYTES = 4 * MIB
HUGE_BYTES = 2 * MIB


class Machines(SceneTest):
    """A guest for each machine."""

    def played(self, percent: int, steps: str, *options, cpus: dict[int, list[int]], offline=()) -> dict[str, dict]:
        """What the steps of scene_machines told, each checked for what goes for every machine, of nodes with these CPUs."""
        machine, *told = self.scene("scene_machines", *options, arguments=[f"{percent}%", *steps.split()])
        self.check_topology(machine, cpus, offline)
        found = {}
        for fact in told:
            if "left" in fact:
                self.check_gone(fact["left"])
            elif "homes" in fact:
                self.check_placed(fact, fact["homes"], FILE_BYTES)
            if "status" in fact:
                self.check_status(fact, machine["memory"], percent)
            what = fact["what"]
            found[f"{what} again" if what in found else what] = fact
        return found

    def check_topology(self, machine: dict, cpus: dict[int, list[int]], offline) -> None:
        """The kernel sees the machine that was asked for, and the command what the kernel sees; it knows offline CPUs too."""
        self.assertEqual(machine["cpus"], {node: [cpu for cpu in some if cpu not in offline] for node, some in cpus.items()})
        nodes = machine["topology"]["nodes"]
        self.assertEqual({node["node"]: node["cpus"] for node in nodes}, cpus)
        for node in nodes:
            self.assertEqual(node["kind"], "dram" if node["cpus"] else "memory-only")
            self.assertAlmostEqual(node["memory_bytes"], machine["memory"][node["node"]], delta=MIB)
        told = {cpu["cpu"]: (cpu["node"], cpu["online"]) for cpu in machine["topology"]["cpus"]}
        self.assertEqual(told, {cpu: (node, cpu not in offline) for node, some in cpus.items() for cpu in some})

    def check_status(self, fact: dict, memory: dict[int, int], percent: int) -> None:
        """Each node is listed, with a member of the share of its memory that was asked for."""
        status = fact["status"]
        self.assertEqual([node["node"] for node in status["nodes"]], list(memory))
        self.assertEqual([member["home"] for member in status["members"]], list(memory))
        for member in status["members"]:
            asked = memory[member["home"]] * percent // 100
            self.assertTrue(asked - HUGE_BYTES <= member["capacity_bytes"] <= asked, (asked, status))
        self.assertEqual((status["fuse"]["transport"], status["fuse"]["panics"]), (fact["what"].split()[0], 0))

    def check_homes(self, fact: dict, nodes) -> None:
        """These were the nodes that were written on."""
        self.assertEqual(sorted(fact["homes"].values()), sorted(nodes))

    def check_hotplug(self, facts: dict, what: str, node: int, nodes) -> None:
        """Files were written while CPUs of a node came and went, and rightly."""
        fact = facts[what]
        self.assertEqual((fact["running"], fact["ended"], fact["whole"]), ([True] * 2, [0] * 2, [True] * 2))
        off = facts[f"{what} off"]
        self.assertEqual(off["online"][node], [])
        self.check_homes(off, set(nodes) - {node})
        self.check_homes(facts[f"{what} off, by policy"], [node])
        self.check_homes(facts[f"{what} on again"], nodes)

    def check_fill(self, fact: dict, far: int) -> None:
        """The far node is the last to get anything, and gets the rest; where it all is the kernel says too."""
        nodes = {node["node"]: node for node in fact["status"]["nodes"]}
        self.assertEqual({node: nodes[node]["state"] for node in nodes if node != far}, {node: "fat" for node in nodes if node != far})
        rest = fact["filled"] - sum(node["used_bytes"] for number, node in nodes.items() if number != far)
        self.assertGreater(rest, MIB)
        (name, on), (_, seen) = *fact["map"].items(), *fact["witness"].items()
        self.assertEqual((on[far], sum(on.values())), (rest, fact["filled"]), name)
        self.assertEqual(seen, on)
        self.check_memory(fact)

    def test_one_node(self):
        facts = self.played(10, "uring local classic local", "--kernel", "6.18", "--nodes", 1, "--mem", "768M", cpus={0: [0, 1]})
        for transport in ("uring", "classic"):
            self.check_homes(facts[f"{transport} local"], [0])

    def test_two_uneven_nodes_with_interleaved_and_absent_cpus(self):
        options = ("--nodes", 2, "--cpus-per-node", "3,2", "--mem", "512M,256M", "--cpu-order", "interleaved", "--absent-cpus", 3)
        for kernel, transport in (("6.1", "classic"), ("6.18", "uring")):
            facts = self.played(15, f"{transport} local", "--kernel", kernel, *options, cpus={0: [0, 2, 4], 1: [1, 3]})
            self.check_homes(facts[f"{transport} local"], [0, 1])
        self.check_local(facts["uring local"], FILE_BYTES)

    def test_four_nodes_whose_cpus_come_and_go_and_one_without(self):
        facts = self.played(
            *(10, "uring local policy:3 online local hotplug:1 policy:4 fill classic local hotplug:2", "--kernel", "6.18"),
            *("--nodes", 4, "--mem", "512M,256M,384M,256M", "--memory-only", "320M", "--offline-cpus", "6,7"),
            cpus={0: [0, 1], 1: [2, 3], 2: [4, 5], 3: [6, 7], 4: []},
            offline=[6, 7],
        )
        self.check_homes(facts["uring local"], [0, 1, 2])
        for what, fact in facts.items():
            if "homes" in fact and "policy" not in what:
                self.assertEqual([on for on in fact["witness"].values() if 4 in on], [], "local writers' bytes on the node without CPUs")
        self.check_homes(facts["uring policy:3"], [3])
        self.check_homes(facts["uring policy:4"], [4])
        for what in ("uring local again", "uring hotplug:1 on again"):
            self.check_homes(facts[what], range(4))
            self.check_local(facts[what], FILE_BYTES)
        self.check_hotplug(facts, "uring hotplug:1", 1, range(4))
        self.check_hotplug(facts, "classic hotplug:2", 2, range(4))
        self.check_fill(facts["uring fill"], 4)

    def test_eight_nodes(self):
        options = ("--nodes", 8, "--cpus-per-node", 1, "--mem", "256M")
        facts = self.played(15, "uring local classic local", "--kernel", "6.18", *options, cpus={node: [node] for node in range(8)})
        for transport in ("uring", "classic"):
            self.check_homes(facts[f"{transport} local"], range(8))
        self.check_local(facts["uring local"], FILE_BYTES)
