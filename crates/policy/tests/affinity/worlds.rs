//! Worlds at random.

use crate::world::{MB, World, cpus};
use homenode_policy::{CpuId, NodeId};
use proptest::prelude::*;

/// Files of a pool in each world.
const FILES: u64 = 3;

/// A thread: CPU it runs on, how busy, how long it waits, cpuset (bits), whether pinned by someone else, disk MB, MB by queue, sent MB.
#[derive(Clone, Debug)]
struct Plant {
    cpu: u32,
    busy: u64,
    waits: u64,
    /// Whether it moves no bytes.
    computes: bool,
    cpuset: u64,
    foreign: bool,
    first_disk: bool,
    disk_mb: u64,
    received_mb: Vec<u64>,
    sent_mb: u64,
    /// Buffers: node and MB of those that stay there, and file and MB of those that belong to a file.
    fixed: (u16, u64),
    used: (u64, u64),
}

fn rate() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(0), 3 => 20..2000u64]
}

prop_compose! {
    fn plant()(
        cpu in 0..64u32,
        busy in 5..100u64,
        waits in prop_oneof![2 => Just(0), 1 => 0..100u64],
        computes in proptest::bool::weighted(0.15),
        cpuset in prop_oneof![2 => Just(u64::MAX), 1 => any::<u64>()],
        foreign in proptest::bool::weighted(0.1),
        first_disk in any::<bool>(),
        disk_mb in rate(),
        received_mb in proptest::collection::vec(rate(), 3),
        sent_mb in rate(),
        fixed in (0..4u16, rate()),
        used in (0..FILES, rate()),
    ) -> Plant {
        Plant { cpu, busy, waits, computes, cpuset, foreign, first_disk, disk_mb, received_mb, sent_mb, fixed, used }
    }
}

/// Up to 4 CPUs on up to two nodes, up to 4 threads, up to 3 queues of a card, and two disks.
pub(crate) fn small() -> impl Strategy<Value = World> {
    telling(small_quiet())
}

/// Up to 32 CPUs on up to four nodes, up to 40 threads.
pub(crate) fn middle() -> impl Strategy<Value = World> {
    telling(middle_quiet())
}

/// Whether bytes are told by their queues.
fn telling(worlds: impl Strategy<Value = World>) -> impl Strategy<Value = World> {
    (worlds, any::<bool>()).prop_map(|(mut world, tells_queues)| {
        world.tells_queues = tells_queues;
        world.observe();
        world
    })
}

fn small_quiet() -> impl Strategy<Value = World> {
    let nodes = prop_oneof![
        Just(vec![2, 2]),
        Just(vec![1, 1]),
        Just(vec![3, 1]),
        Just(vec![1, 2]),
        Just(vec![4]),
    ];
    let homes = (proptest::option::of(0..2u16), 0..2u16, 0..2u16);
    (
        nodes,
        12..40u32,
        1..4u32,
        homes,
        proptest::collection::vec(0..4u32, 1..=3),
        proptest::collection::vec(plant(), 1..=4),
    )
        .prop_map(|(nodes, distance, caches, homes, places, plants)| {
            world(World::new(&nodes, distance, caches.max(2)), homes, &places, &plants)
        })
}

fn middle_quiet() -> impl Strategy<Value = World> {
    let nodes = proptest::collection::vec(1..9u32, 1..=4);
    let homes = (proptest::option::of(0..4u16), 0..4u16, 0..4u16);
    (
        nodes,
        12..40u32,
        2..9u32,
        homes,
        proptest::collection::vec(0..32u32, 1..=8),
        proptest::collection::vec(plant(), 1..=40),
    )
        .prop_map(|(nodes, distance, caches, homes, places, plants)| {
            world(World::new(&nodes, distance, caches), homes, &places, &plants)
        })
}

/// Fills a machine. The card's queues start on different CPUs while there are any, so that bytes can be told apart.
fn world(mut world: World, homes: (Option<u16>, u16, u16), places: &[u32], plants: &[Plant]) -> World {
    let nodes = u16::try_from(world.snapshot.topology.nodes().len()).expect("the test's world is consistent");
    let online = world.snapshot.online.clone();
    let count = u32::try_from(online.len()).expect("the test's world is consistent");
    world.add_wide_disk("nvme0n1", homes.0.map(|home| home % nodes));
    let half = online.len().div_ceil(2);
    let halves: Vec<Vec<CpuId>> = online.chunks(half).map(<[CpuId]>::to_vec).collect();
    world.add_disk("nvme1n1", Some(homes.1 % nodes), &halves);
    let mut left: Vec<u32> = (0..count).collect();
    let place = |place: &u32| left.remove(*place as usize % left.len());
    let places: Vec<u32> = places.iter().take(online.len()).map(place).collect();
    world.add_card("eth0", Some(homes.2 % nodes), &places);
    for inode in 0..FILES {
        let home = u16::try_from(inode).expect("the number is small") % nodes;
        world.add_file(inode, home, MB << (4 * inode));
    }
    for plant in plants {
        let thread = world.add_thread("worker", plant.cpu % count, plant.busy);
        let set: Vec<CpuId> = cpus((0..count).filter(|cpu| plant.cpuset >> cpu & 1 == 1));
        let it = &mut world.snapshot.threads[thread];
        it.waited_ns = plant.waits * 10_000_000;
        if !set.is_empty() {
            it.cpuset = set[..].into();
            it.allowed = set.into();
        }
        if plant.foreign {
            it.allowed = it.allowed[..1].into();
        }
        if !it.allowed.contains(&it.cpu) {
            it.cpu = it.allowed[0];
        }
        if plant.computes {
            continue;
        }
        world.add_sent_bytes(thread, None, plant.sent_mb * MB);
        if plant.disk_mb > 0 {
            world.add_disk_bytes(
                thread,
                if plant.first_disk { "nvme0n1" } else { "nvme1n1" },
                plant.disk_mb * MB,
            );
        }
        let (node, mb) = plant.fixed;
        if mb > 0 {
            world.fixed.push((thread, NodeId(node % nodes), mb * MB));
        }
        let (inode, mb) = plant.used;
        if mb > 0 {
            world.add_use(thread, inode, mb * MB);
        }
        for (queue, mb) in (0..).zip(&plant.received_mb).take(places.len()) {
            if *mb > 0 {
                world.add_stream(thread, "eth0", queue, mb * MB);
            }
        }
    }
    world.observe();
    world
}
