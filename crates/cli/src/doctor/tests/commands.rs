//! The command for every problem.

use super::*;
use homenode_policy::affinity::{Class, QueueKind};
use homenode_policy::doctor::{Heap, Held, Mobility, Problem, Threads, Way};

fn threads(numbers: &[u32]) -> Threads {
    Threads {
        process: "reader".to_owned(),
        numbers: numbers.to_vec(),
        from: NodeId(0),
    }
}

fn interrupts(mobility: Mobility) -> Problem {
    Problem::RemoteInterrupts {
        device: "disk".to_owned(),
        wanted: NodeId(1),
        wanted_at_home: true,
        numbers: vec![100, 103],
        remote: 10,
        all: 10,
        on: vec![NodeId(0)],
        mobility,
    }
}

fn held(held: Held, numbers: &[u32]) -> Problem {
    Problem::HeldThreads {
        threads: threads(numbers),
        device: "disk".to_owned(),
        home: NodeId(1),
        held,
    }
}

fn far_buffers(way: Way) -> Problem {
    Problem::FarBuffers {
        threads: threads(&[7, 9]),
        home: NodeId(1),
        percent: 93,
        bytes_per_s: 1_200_000_000,
        way,
    }
}

/// Problems of threads far from their buffers, with their commands.
fn of_buffers() -> Vec<(Problem, &'static str)> {
    vec![
        (far_buffers(Way::Threads), "homenode affinity apply"),
        (far_buffers(Way::Files), "homenode affinity apply"),
        (
            far_buffers(Way::Held(Held::Mask)),
            "for n in 7 9; do taskset -cp 4-7 $n; done",
        ),
        (
            far_buffers(Way::Held(Held::Cpuset)),
            "for n in 7 9; do cat /proc/$n/cpuset; done",
        ),
    ]
}

/// Problems of queues of the card that these commands mend.
fn of_queues() -> Vec<(Problem, &'static str)> {
    let (device, queues) = ("card".to_owned(), vec![0, 1]);
    vec![
        (
            Problem::XpsCrosses {
                device: device.clone(),
                queues: vec![1],
            },
            "echo 000000f0 >/sys/class/net/card/queues/tx-1/xps_cpus",
        ),
        (
            Problem::RpsCrosses {
                device: device.clone(),
                queues,
            },
            "echo 0000000f >/sys/class/net/card/queues/rx-0/rps_cpus; \
             echo 00000020 >/sys/class/net/card/queues/rx-1/rps_cpus",
        ),
    ]
}

/// Problems of threads, devices and queues, with the command that mends it on a machine of two nodes with four CPUs each, where no plan moves
/// anything, and whose card's second queue arrives on node 1.
fn of_devices() -> Vec<(Problem, &'static str)> {
    let (device, home) = ("card".to_owned(), NodeId(1));
    let far = Problem::FarThreads {
        threads: threads(&[7]),
        device: "disk".to_owned(),
        class: Class::Disk,
        to: home,
    };
    let queues = vec![0, 1];
    vec![
        (far, "homenode affinity apply"),
        (held(Held::Mask, &[7]), "taskset -cp 4-7 7"),
        (held(Held::Mask, &[7, 9]), "for n in 7 9; do taskset -cp 4-7 $n; done"),
        (
            held(Held::Cpuset, &[7, 9]),
            "for n in 7 9; do cat /proc/$n/cpuset; done",
        ),
        (interrupts(Mobility::Planned), "homenode affinity apply"),
        (interrupts(Mobility::ManagedPlanned), "homenode affinity apply"),
        (
            interrupts(Mobility::Managed),
            "numactl --cpunodebind=1 --localalloc COMMAND",
        ),
        (
            interrupts(Mobility::Loose),
            "for n in 100 103; do echo 4-7 >/proc/irq/$n/smp_affinity_list; done",
        ),
        (
            Problem::OneCpu {
                cpu: CpuId(0),
                numbers: vec![1, 2],
                arrivals: 9,
            },
            "systemctl enable --now irqbalance",
        ),
        (
            Problem::FewQueues {
                device: device.clone(),
                home,
                queues: 2,
                cpus: 4,
                max: Some(3),
            },
            "ethtool -L card combined 3",
        ),
        (
            Problem::UnusedQueues {
                device: device.clone(),
                used: 1,
                queues: 4,
            },
            "ethtool -X card default",
        ),
        (
            Problem::NoXps {
                device: device.clone(),
                queues: queues.clone(),
            },
            "echo 0000000f >/sys/class/net/card/queues/tx-0/xps_cpus; \
             echo 000000f0 >/sys/class/net/card/queues/tx-1/xps_cpus",
        ),
        (
            Problem::HomeUnknown {
                device: device.clone(),
                address: Some("0000:3b:00.0".to_owned()),
                arrivals: 1,
            },
            "echo NODE >/sys/bus/pci/devices/0000:3b:00.0/numa_node",
        ),
        (
            Problem::HomeUnknown {
                device,
                address: None,
                arrivals: 1,
            },
            "homenode affinity explain card",
        ),
        (Problem::Conflict(Helper::Numad), "systemctl disable --now numad"),
        (
            Problem::Conflict(Helper::Tuned),
            "tuned-adm list; tuned-adm profile PROFILE",
        ),
        (
            Problem::Conflict(Helper::SystemdLink),
            "grep -rlE 'ReceivePacketSteeringCPUMask|Channels|Queues' /etc/systemd/network",
        ),
    ]
}

/// Problems of memory and settings, with their commands.
fn of_memory() -> Vec<(Problem, &'static str)> {
    let (home, node) = (NodeId(1), NodeId(0));
    let heap = Heap {
        node,
        bytes: 1,
        percent: 90,
        free_elsewhere_bytes: 1,
    };
    let mount = |at: &str| Tmpfs {
        at: at.to_owned(),
        policy: String::new(),
        used_bytes: 1,
    };
    let placed = |balanced| Problem::PlacedFar {
        nodes: vec![node],
        pages: 1,
        balanced,
    };
    vec![
        (Problem::CacheOnOneNode(heap), "sync; echo 1 >/proc/sys/vm/drop_caches"),
        (
            Problem::TmpfsOnOneNode {
                heap,
                mounts: vec![mount("/it's here")],
            },
            "mount -o remount,mpol=interleave '/it'\\''s here'",
        ),
        (
            Problem::TmpfsOnOneNode {
                heap,
                mounts: Vec::new(),
            },
            "homenode up DIR",
        ),
        (
            Problem::NodeFull {
                node,
                bytes: 1,
                largest_bytes: 2,
                pages: 3,
                from: vec![home],
            },
            "numactl --interleave=0-1 COMMAND",
        ),
        (placed(false), "sysctl -w kernel.numa_balancing=1"),
        (
            placed(true),
            "grep -lE ' (bind|prefer|interleave)' /proc/[0-9]*/numa_maps",
        ),
        (
            Problem::NoMemory { node, busy_percent: 9 },
            "numactl --cpunodebind=0 --membind=0 COMMAND",
        ),
        (Problem::NoCpus { node, used_bytes: 9 }, "numactl --membind=0-1 COMMAND"),
        (
            Problem::IdleBalancing {
                faults_per_s: 9,
                migrated_per_s: 0,
            },
            "sysctl -w kernel.numa_balancing=0",
        ),
        (
            Problem::ZoneReclaim { mode: 1, reclaims: 0 },
            "sysctl -w vm.zone_reclaim_mode=0",
        ),
        (Problem::NoRings, "echo Y >/sys/module/fuse/parameters/enable_uring"),
        (
            Problem::NoHugePages,
            "echo never >/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        ),
    ]
}

#[test]
fn every_problem_has_its_command() {
    let mut world = World::new(&[4, 4], 20, 4);
    world.add_card("card", Some(1), &[0, 5]);
    // RPS of the first queue on all CPUs, of the second one on one of each node.
    let steered = [(0..8).collect::<Vec<_>>(), vec![2, 5]];
    let receiving = world
        .snapshot
        .queues
        .iter_mut()
        .filter(|queue| queue.kind == QueueKind::Receive);
    for (queue, cpus) in receiving.zip(steered) {
        queue.cpus = cpus.into_iter().map(CpuId).collect();
    }
    let judged = Judged::new(Source::Live, examined(world.snapshot));
    for (problem, command) in [of_devices(), of_queues(), of_buffers(), of_memory()].concat() {
        assert_eq!(remedy::command(&judged, &problem), command, "{problem:?}");
    }
}

#[test]
fn commands_name_no_cpu_that_is_set_apart() {
    let mut world = World::new(&[4, 4], 20, 4);
    world.snapshot.isolated = [6, 7].map(CpuId).to_vec();
    let judged = Judged::new(Source::Live, examined(world.snapshot.clone()));
    assert_eq!(remedy::command(&judged, &held(Held::Mask, &[7])), "taskset -cp 4-5 7");
    let loose = interrupts(Mobility::Loose);
    let command = remedy::command(&judged, &loose);
    assert!(command.contains("echo 4-5 >"), "{command}");
    world.snapshot.isolated = (4..8).map(CpuId).collect();
    let judged = Judged::new(Source::Live, examined(world.snapshot));
    for problem in [held(Held::Mask, &[7]), loose] {
        assert_eq!(
            remedy::command(&judged, &problem),
            "cat /sys/devices/system/cpu/isolated"
        );
    }
}
