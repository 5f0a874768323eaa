use super::*;

/// A node of 800 MiB of which `free` MiB are free, without cache.
fn info(free: u64) -> Meminfo {
    Meminfo {
        total: 800 << 20,
        free: free << 20,
        ..Meminfo::default()
    }
}

fn node() -> Node {
    Node {
        means: Means::Moving,
        kept_bytes: 10 << 20,
        ..Node::open(NodeId(0)).unwrap()
    }
}

#[test]
fn room_is_short_below_the_target_and_until_a_quarter_above_it() {
    let mut node = node();
    for (free, is_short) in [(211, false), (209, true), (250, true), (261, false), (220, false)] {
        node.keep(&info(free), 0, u64::MAX, (NodeId(0), 0));
        assert_eq!(node.is_short, is_short, "{free} MiB free of 800");
    }
    node.keep(&info(31), 0, 20 << 20, (NodeId(0), 0));
    assert!(!node.is_short, "no more than files may take");
}

#[test]
fn moving_waits_for_writers_while_enough_room_is_left() {
    let means = Means::Moving;
    for (free, taken, would_disturb) in [(150, 0, false), (150, 4, true), (51, 4, true), (49, 4, false)] {
        assert_eq!(
            means.would_disturb(free << 20, taken << 20, 200 << 20),
            would_disturb,
            "{free} MiB free, {taken} taken"
        );
    }
}

#[test]
fn the_kernels_reserve_is_the_sum_of_low_watermarks() {
    let zone = |node, name, low| {
        format!(
            "Node {node}, zone {name:>8}\n  pages free     381\n        min      100\n        low      {low}\n        high     300\n      nr_low 7\n"
        )
    };
    let zoneinfo = [zone(1, "DMA", 1), zone(1, "DMA32", 20), zone(11, "Normal", 300)].concat();
    assert_eq!(kept_bytes(&zoneinfo, NodeId(1)), 21 * BLOCK_BYTES as u64);
    assert_eq!(kept_bytes(&zoneinfo, NodeId(2)), 0);
}

#[test]
fn free_huge_pages_count_pieces_of_2_mib_and_more() {
    let buddyinfo = "Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3 \n\
                     Node 1, zone    DMA32      1      1      4      2      5      4      3      3      4      2    752 \n\
                     Node 1, zone   Normal  25982  11045   4242   1937    887    405    169     87     50      7    451 \n";
    let mib = |node| free_huge_bytes(buddyinfo, NodeId(node)).map(|bytes| bytes >> 20);
    assert_eq!(mib(0), Some(2 + 3 * 4));
    assert_eq!(mib(1), Some((2 + 7) * 2 + (752 + 451) * 4));
    assert_eq!(mib(10), None);
}

#[test]
fn node_is_compacted_when_it_has_free_memory_and_too_few_huge_pages() {
    // Of 800 MiB a part of 100 is wanted.
    for (free, huge, wanted, is_wanted) in [
        (200, 99, u64::MAX, true),
        (200, 101, u64::MAX, false),
        (199, 0, u64::MAX, false),
        (200, 30, 20, false),
        (50, 10, 20, true),
    ] {
        assert_eq!(
            is_in_pieces(&info(free), huge << 20, wanted.saturating_mul(1 << 20)),
            is_wanted,
            "{huge} of {free} MiB, {wanted} wanted"
        );
    }
}

#[test]
fn node_that_is_compacted_in_vain_leaves_the_next_turn_to_others() {
    let mut keeper = RoomKeeper {
        nodes: vec![node(), node()],
        period: PERIOD_MIN,
        next_huge: Instant::now(),
    };
    let infos = [info(200), info(200)];
    let mut look = || {
        let before: Vec<_> = keeper.nodes.iter().map(|node| node.compacts_again).collect();
        keeper.make_huge("Node 0, zone Normal 51200", &infos, 4 << 20);
        let served = keeper.nodes.iter_mut().zip(before).map(|(node, before)| {
            let is_served = node.compacts_again != before;
            // Its rest is over by the next look.
            node.compacts_again = node.compacts_again.map(|end| end.min(Instant::now()));
            is_served
        });
        served.collect::<Vec<_>>()
    };
    let (first, second) = (look(), look());
    assert_eq!((first, second), (vec![true, false], vec![false, true]));
}

#[test]
fn single_node_needs_no_keeper() {
    assert!(RoomKeeper::new(&[NodeId(0)]).nodes.is_empty());
}

#[test]
fn pages_are_moved_in_only_from_another_node_with_room() {
    assert!(move_in(NodeId(0), 4 << 20, (NodeId(0), u64::MAX)).is_err());
    assert!(move_in(NodeId(0), 4 << 20, (NodeId(1), 7 << 20)).is_err());
}

#[test]
fn huge_pages_are_taken_until_small_ones_come() {
    const BYTES: usize = 4 * HUGE_BYTES;
    let taken = |advice| {
        let mapping = Mapping::reserve(BYTES).unwrap();
        mapping.fill().unwrap();
        mapping.advise(advice).unwrap();
        let start = Instant::now();
        let taken = take_huge(&mapping, BYTES).unwrap();
        let is_in_time = start.elapsed() < HUGE_TIME_MAX;
        let huge = mapping.told("AnonHugePages:").unwrap();
        (
            taken,
            huge.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10,
            is_in_time,
        )
    };
    let (all, huge, _) = taken(libc::MADV_NOHUGEPAGE);
    assert_eq!((all, huge), (HUGE_BYTES, 0));
    // Where there are none, it ends as early; where the kernel takes long to make them, with the time.
    let (all, huge, is_in_time) = taken(libc::MADV_HUGEPAGE);
    assert!(
        huge == BYTES || all == huge + HUGE_BYTES || (all == huge && !is_in_time),
        "{huge} of {all} bytes"
    );
}
