"""The arguments of QEMU that make a machine."""

from dataclasses import dataclass
from pathlib import Path

from . import cache, source
from .errors import LabError
from .machine import Machine
from .options import Run

MIB = 1 << 20

# tsc=reliable, no_timer_check, nowatchdog: vCPUs that wait for each other's turn on few CPUs look broken to a kernel's checks.
# panic=-1: a guest that panics ends at once, as -no-reboot makes of its reboot.
KERNEL_WORDS = "console=ttyS0 panic=-1 nokaslr mitigations=off no_timer_check tsc=reliable nowatchdog net.ifnames=0 lpj=5000000"

# QEMU emulates `rep movsb` byte by byte: a kernel that is not told of fast ones copies words, in half the time.
CPU_MODEL = "max,-erms,-fsrm"

# The counter knows what this version tells as a physical address (see `ranges`).
COUNTED_QEMU = "7.2"


@dataclass
class Descriptors:
    """Open files that QEMU inherits. All of them are pipes, sockets or anonymous memory: a run leaves no file behind."""

    console: int
    port: int
    initramfs: int
    disks: list[int]
    counts: int | None


def arguments(run: Run, kernel: cache.Kernel, files: Descriptors) -> list[str]:
    """The whole command line."""
    machine = run.machine
    qemu = cache.tool("qemu-system-x86_64")
    firmware = []
    if qemu.is_relative_to(cache.tools()):
        for directory in ("qemu", "seabios"):
            firmware += ["-L", f"{cache.tools()}/usr/share/{directory}"]
    words = KERNEL_WORDS + (" loglevel=7" if run.verbose else " loglevel=4")
    return [
        *(str(qemu), *firmware, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-machine", "q35,smm=off,nvdimm=on" if machine.nvdimm else "q35,smm=off"),
        *("-accel", "tcg,thread=multi", "-cpu", CPU_MODEL),
        *("-kernel", str(kernel.image), "-initrd", f"/proc/self/fd/{files.initramfs}", "-append", words),
        *("-chardev", f"socket,id=console,fd={files.console}", "-serial", "chardev:console"),
        *("-device", "virtio-serial-pci,bus=pcie.0", "-chardev", f"socket,id=port,fd={files.port}"),
        *("-device", "virtserialport,name=homenode-lab,chardev=port"),
        *nodes(machine),
        *directories(run),
        *devices(machine, files.disks, run.source),
        *counter(run, files.counts),
    ]


def nodes(machine: Machine) -> list[str]:
    """Memory, CPUs and distances."""
    possible = len(machine.cpu_nodes) + machine.absent_cpus
    # A socket for each CPU: Linux complains of a socket whose CPUs are on several nodes.
    words = ["-smp", f"{len(machine.cpu_nodes)},maxcpus={possible},sockets={possible},cores=1,threads=1"]
    total = sum(machine.memory_mib)
    pmem = sum(device.size_mib for device in machine.nvdimm)
    hotplug = f",slots={len(machine.nvdimm)},maxmem={total + pmem + 1024}M" if machine.nvdimm else ""
    words += ["-m", f"{total}M{hotplug}"]
    cpu_nodes = machine.cpu_nodes + [max(machine.cpu_nodes)] * machine.absent_cpus
    for node, size in enumerate(machine.memory_mib):
        cpus = "".join(f",cpus={cpu}" for cpu, home in enumerate(cpu_nodes) if home == node)
        memory = ""
        if size:
            words += ["-object", f"memory-backend-ram,id=memory{node},size={size}M"]
            memory = f",memdev=memory{node}"
        words += ["-numa", f"node,nodeid={node}{memory}{cpus}"]
    for one, row in enumerate(machine.distances):
        for other, distance in enumerate(row):
            words += ["-numa", f"dist,src={one},dst={other},val={distance}"]
    return words


def directories(run: Run) -> list[str]:
    """The host's /, read-only, and the shared directories."""
    # remap: the host's / has other filesystems mounted in it, whose inode numbers would collide.
    words = ["-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"]
    words += ["-device", "virtio-9p-pci,bus=pcie.0,fsdev=host,mount_tag=host"]
    for number, path in enumerate(run.shared):
        escaped = str(path).replace(",", ",,")
        words += ["-fsdev", f"local,id=share{number},path={escaped},security_model=none,multidevs=remap"]
        words += ["-device", f"virtio-9p-pci,bus=pcie.0,fsdev=share{number},mount_tag=share{number}"]
    return words


def devices(machine: Machine, disks: list[int], has_source: bool) -> list[str]:
    """Each PCI device sits below an expander bridge, which is what can be on a node."""
    words = []
    on_nodes = sorted({device.node for device in [*machine.nvme, *machine.net]})
    for place, node in enumerate(on_nodes):
        words += ["-device", f"pxb-pcie,id=expander{node},bus=pcie.0,bus_nr={16 * (place + 1)},numa_node={node}"]
    chassis = 0
    for number, (disk, descriptor) in enumerate(zip(machine.nvme, disks, strict=True)):
        chassis += 1
        words += ["-device", f"pcie-root-port,id=slot{chassis},bus=expander{disk.node},chassis={chassis},slot={chassis}"]
        words += ["-drive", f"file=/proc/self/fd/{descriptor},if=none,id=disk{number},format=raw,cache=unsafe"]
        # One interrupt more than queues: the admin queue's.
        queues = f"max_ioqpairs={disk.queues},msix_qsize={disk.queues + 1}"
        words += ["-device", f"nvme,bus=slot{chassis},drive=disk{number},serial=nvme{number}-node{disk.node},{queues}"]
    for number, card in enumerate(machine.net):
        chassis += 1
        if card.queues > 1 and not Path("/dev/net/tun").exists():
            raise LabError("there is no /dev/net/tun, which a network card of several queues needs: modprobe tun")
        words += ["-device", f"pcie-root-port,id=slot{chassis},bus=expander{card.node},chassis={chassis},slot={chassis}"]
        # Only a tap has several queues. Without a source it is never brought up, and goes with QEMU.
        name = f",ifname={source.tap(number)}" if has_source else ""
        words += ["-netdev", f"tap,id=net{number},queues={card.queues}{name},script=no,downscript=no,vhost=off"]
        several = ",mq=on" if card.queues > 1 else ""
        several += ",rss=on" if card.rss else ""
        own = f"mac={source.mac(number)},vectors={2 * card.queues + 2},romfile="
        words += ["-device", f"virtio-net-pci,bus=slot{chassis},netdev=net{number}{several},{own}"]
    if machine.nvdimm:
        # Keeps the addresses that the plugin interface tells for NVDIMMs apart from the nodes' (see `ranges`). Never touched.
        words += ["-object", f"memory-backend-ram,id=gap,size={sum(machine.memory_mib)}M"]
    for number, dimm in enumerate(machine.nvdimm):
        backend = f"memory-backend-file,mem-path={str(dimm.file).replace(',', ',,')}" if dimm.file else "memory-backend-memfd"
        words += ["-object", f"{backend},id=pmem{number},size={dimm.size_mib}M,share=on"]
        words += ["-device", f"nvdimm,id=nvdimm{number},memdev=pmem{number},node={dimm.node}"]
    return words


def counter(run: Run, output: int | None) -> list[str]:
    """The plugin, if it is asked for."""
    if output is None:
        return []
    plugin = cache.require(cache.program("counter.so"), "the access counter")
    words = [f"range={start}:{size}:{node}" for start, size, node in ranges(run.machine)]
    words += [f"cpu={node}" for node in run.machine.cpu_nodes + [max(run.machine.cpu_nodes)] * run.machine.absent_cpus]
    if run.delay_ns:
        words.append(f"delay={run.delay_ns}")
    return ["-plugin", ",".join([str(plugin).replace(",", ",,"), f"out={output}", *words])]


def ranges(machine: Machine) -> list[tuple[int, int, int]]:
    """Start, size and node of what QEMU 7.2's plugin interface tells as the physical addresses of memory.

    It tells the offset of the memory block among all blocks, plus the block's offset in its container, plus the offset in
    the block. The nodes' blocks are the first, and follow each other in both: so each node begins at twice the sum of the sizes before it.
    A block that is mapped by another way, as an NVDIMM's, has no second offset.
    """
    found = []
    before = 0
    for node, size in enumerate(machine.memory_mib):
        if size:
            found.append((2 * before * MIB, size * MIB, node))
        before += size
    # The first free block number after the nodes' and the gap's.
    after = 2 * before
    for dimm in machine.nvdimm:
        found.append((after * MIB, dimm.size_mib * MIB, dimm.node))
        after += dimm.size_mib
    return found
