"""The machine a guest sees: plain data, checked when it is made."""

from dataclasses import dataclass, field
from pathlib import Path

from .errors import LabError

NODES_MAX = 16
CPUS_MAX = 64

# The distances of firmware tables: to oneself, to another node, and one hop more to a node without CPUs.
LOCAL, REMOTE, FAR = 10, 21, 31


@dataclass(frozen=True)
class Device:
    """A device on a node: an NVMe disk, an NVDIMM or a network card."""

    node: int
    size_mib: int = 0
    queues: int = 0
    file: Path | None = None
    """A file of this machine that keeps what an NVDIMM holds; without one it goes with the guest."""
    rss: bool = False
    """Whether a network card has a table that says by which queue packets arrive."""


@dataclass
class Machine:
    """Nodes with memory, CPUs and devices."""

    memory_mib: list[int]
    """One size a node."""
    cpu_nodes: list[int]
    """The node of each CPU, by the CPU's number."""
    absent_cpus: int = 0
    """CPUs that are possible and not there, on the last node that has any."""
    offline_cpus: list[int] = field(default_factory=list)
    distances: list[list[int]] = field(default_factory=list)
    nvme: list[Device] = field(default_factory=list)
    nvdimm: list[Device] = field(default_factory=list)
    net: list[Device] = field(default_factory=list)

    def __post_init__(self):
        if not self.distances:
            self.distances = self.default_distances()
        self.check_nodes()
        self.check_distances()
        self.check_devices()

    @property
    def nodes(self) -> range:
        """The numbers of the nodes."""
        return range(len(self.memory_mib))

    def default_distances(self) -> list[list[int]]:
        """Every node is as far from every other, and nodes without CPUs are farther."""

        def distance(one: int, other: int) -> int:
            if one == other:
                return LOCAL
            return REMOTE if one in self.cpu_nodes and other in self.cpu_nodes else FAR

        return [[distance(one, other) for other in self.nodes] for one in self.nodes]

    def check_nodes(self) -> None:
        """Linux has to boot on node 0, and QEMU and the counter have their limits."""
        if not 1 <= len(self.memory_mib) <= NODES_MAX:
            raise LabError(f"a guest has 1 to {NODES_MAX} nodes, not {len(self.memory_mib)}")
        if not 1 <= len(self.cpu_nodes) + self.absent_cpus <= CPUS_MAX:
            raise LabError(f"a guest has 1 to {CPUS_MAX} CPUs, not {len(self.cpu_nodes) + self.absent_cpus}")
        if self.cpu_nodes[0] != 0 or self.memory_mib[0] < 128:
            raise LabError("the guest boots on node 0: give it a CPU and at least 128M of memory")
        for node, size in enumerate(self.memory_mib):
            if size == 0 and node not in self.cpu_nodes:
                raise LabError(f"node {node} has neither a CPU nor memory: give it one, or leave it out")
        for cpu in self.offline_cpus:
            if not 0 < cpu < len(self.cpu_nodes):
                raise LabError(f"CPU {cpu} cannot be offline: there are the CPUs 0 to {len(self.cpu_nodes) - 1}, and 0 stays")

    def check_distances(self) -> None:
        """The rules of ACPI's table of distances."""
        count = len(self.nodes)
        if len(self.distances) != count or any(len(row) != count for row in self.distances):
            raise LabError(f"the distances have to be {count} lines of {count} numbers, as there are {count} nodes")
        for one in self.nodes:
            for other, distance in enumerate(self.distances[one]):
                if (one == other) != (distance == LOCAL) or not LOCAL <= distance < 255:
                    raise LabError(f"distance {distance} from node {one} to {other}: it is 10 to itself, 11 to 254 to others")

    def check_devices(self) -> None:
        """Each device has to be on a node that there is."""
        for device in [*self.nvme, *self.nvdimm, *self.net]:
            if device.node not in self.nodes:
                raise LabError(f"a device is on node {device.node}, and the nodes are 0 to {len(self.nodes) - 1}")
        for device in self.nvme:
            if not device.size_mib:
                raise LabError("an NVMe disk has at least 1M")
        for device in self.nvdimm:
            if device.size_mib % 16 or not device.size_mib:
                raise LabError(f"the size of an NVDIMM is a multiple of 16M, not {device.size_mib}M")
            if device.file and (not device.file.is_file() or device.file.stat().st_size != device.size_mib << 20):
                raise LabError(f"{device.file} is no file of {device.size_mib}M: truncate -s {device.size_mib}M makes one")
        for device in [*self.nvme, *self.net]:
            if not 1 <= device.queues <= CPUS_MAX:
                raise LabError(f"a device has 1 to {CPUS_MAX} queues, not {device.queues}")
            if device.rss and device.queues == 1:
                raise LabError("rss=on spreads packets over queues, and the card has one: give it queues=2 or more")


def number_cpus(per_node: list[int], order: str) -> list[int]:
    """The node of each CPU: all of a node in a row, or one of each node in turn."""
    if order == "contiguous":
        return [node for node, count in enumerate(per_node) for _ in range(count)]
    left = list(per_node)
    numbered = []
    while any(left):
        for node, count in enumerate(left):
            if count:
                numbered.append(node)
                left[node] -= 1
    return numbered


def read_distances(path: Path) -> list[list[int]]:
    """A file of distances: a line for each node, a number for each node, as numactl --hardware prints them."""
    try:
        lines = [line.split() for line in path.read_text().splitlines() if line.strip()]
        return [[int(word) for word in line] for line in lines]
    except OSError as error:
        raise LabError(f"the distances {path}: {error.strerror}") from error
    except ValueError as error:
        raise LabError(f"the distances {path}: {error}: expected lines of numbers") from error
