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
fn moving_waits_for_writers_until_little_is_left() {
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
fn what_the_kernel_keeps_is_the_low_watermark_of_all_zones_of_the_node() {
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
fn single_node_needs_no_keeper() {
    assert!(RoomKeeper::new(&[NodeId(0)]).nodes.is_empty());
}

#[test]
fn pages_are_moved_in_only_from_another_node_with_room() {
    assert!(move_in(NodeId(0), 4 << 20, (NodeId(0), u64::MAX)).is_err());
    assert!(move_in(NodeId(0), 4 << 20, (NodeId(1), 7 << 20)).is_err());
}
