use super::tasks::{Busy, Tasks, Told};
use super::view::{Sort, View};
use super::{KEY_WAIT, picture, press};
use crate::control::protocol::StatusReport;
use crate::cost::median_cost;
use crate::live::{Pool, Pools};
use crate::mountinfo::Device;
use crate::report::{KindTimes, Sample, Span};
use crate::says::says;
use homenode::{Flow, MemberState, NodeId, NodeStatus, Spill, Status};
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::Color;
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn pool(name: &str, minor: u32, nodes: u16, scale: u64) -> Pool {
    let node = |node: u16| NodeStatus {
        node: NodeId(node),
        state: MemberState::Candidate,
        capacity_bytes: 1024 * MIB,
        populated_bytes: 0,
        used_bytes: u64::from(node + 1) * 200 * MIB,
        spilled_bytes: 0,
    };
    let flow = |from, home, bytes: u64| Flow {
        from: NodeId(from),
        home: NodeId(home),
        bytes: bytes * scale,
        operations: bytes / MIB * 16,
    };
    let report = StatusReport {
        directory: name.to_owned(),
        mounted: true,
        pid: 77,
        pool: Status {
            capacity_bytes: u64::from(nodes) * 1024 * MIB,
            used_bytes: 600 * MIB * scale,
            nodes: (0..nodes).map(node).collect(),
            ..Status::default()
        },
        ..StatusReport::default()
    };
    let sample = |second: u64| Sample {
        at_ms: second * 1000,
        span_ms: 1000,
        flows: Some(vec![
            flow(0, 0, 700 * MIB),
            flow(1, 1, 200 * MIB),
            flow(1, 0, 100 * MIB),
        ]),
        spills: vec![Spill {
            from: NodeId(1),
            home: NodeId(0),
            bytes: 3 * MIB,
        }],
        requests: 1200 * second,
        times: vec![KindTimes {
            kind: "read".to_owned(),
            sum_ns: 1200 * 3000,
            spans: vec![Span {
                below_ns: Some(4096),
                requests: 1200,
            }],
        }],
        used_bytes: 600 * MIB,
        server_bytes: 20 * MIB,
        server_cpu_ns: 20_000_000,
        ..Sample::default()
    };
    Pool {
        device: Device { major: 0, minor },
        name: name.to_owned(),
        report: Some(Arc::new(report)),
        samples: (1..=90).map(sample).map(Arc::new).collect(),
        silent: None,
    }
}

fn two_pools() -> View {
    let mut view = View::new(true);
    view.note(Pools {
        pools: vec![pool("/mnt/a", 50, 2, 1), pool("/mnt/b", 51, 4, 3)],
        dead: Vec::new(),
        affinity_changes: 0,
    });
    view
}

fn drawn(view: &View, width: u16, height: u16) -> Vec<String> {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    view.draw(area, &mut buffer);
    let line = |row| {
        let cells = (0..width).map(|column| buffer[(column, row)].symbol().to_owned());
        cells.collect::<String>().trim_end().to_owned()
    };
    (0..height).map(line).collect()
}

fn type_keys(view: &mut View, keys: &str) -> bool {
    let mut keys = keys
        .chars()
        .map(|key| KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE));
    keys.any(|key| press(view, key).is_break())
}

#[test]
fn eighty_columns_and_twenty_four_lines_show_nodes_flows_and_times() {
    let lines = drawn(&two_pools(), 80, 24);
    let expected = [
        "homenode top  2 pools by name  health: ok",
        "",
        "  POOL                   LOCAL   BYTES/s  REMOTE/s    REQ/s      USED  CAPACITY",
        "> /mnt/a                90.0 %  1000 MiB   100 MiB   108000   600 MiB  2.00 GiB",
        "  /mnt/b                90.0 %  2.93 GiB   300 MiB   108000  1.76 GiB  4.00 GiB",
        "",
        "NODE  USED                              LOCAL/s    FROM/s      TO/s SPILLED/s",
        "0     ████▋                      19 %   700 MiB       0 B   100 MiB       0 B",
        "1     █████████▍                 39 %   200 MiB   100 MiB       0 B  3.00 MiB",
        "node 1 → 0    100 MiB/s 1600 op/s ████████████████████████",
    ];
    for (line, expected) in lines.iter().zip(expected) {
        assert!(
            line.starts_with(expected),
            "{line:?} and {expected:?}\n{}",
            lines.join("\n")
        );
    }
    let all = lines.join("\n");
    says(
        &all,
        &[
            "read        1200/s  mean  3000 ns  99 % below  4096 ns",
            "server 77: memory 20.0 MiB, CPU 2.0 %",
            "at most 108000",
        ],
    );
}

#[test]
fn any_size_is_drawn() {
    let mut view = two_pools();
    view.pools.dead = vec!["/mnt/dead".to_owned()];
    view.tasks = Some(Tasks::told_by(Device { major: 0, minor: 50 }, Told::default()));
    for (width, height) in [(1, 1), (10, 3), (40, 10), (80, 24), (300, 100)] {
        assert_eq!(drawn(&view, width, height).len(), usize::from(height));
    }
    view.has_help = true;
    assert!(drawn(&view, 80, 24).join("\n").contains("threads of the chosen pool"));
}

#[test]
fn ascii_pictures_have_nothing_else() {
    let mut view = two_pools();
    view.tasks = Some(Tasks::told_by(Device { major: 0, minor: 50 }, Told::default()));
    assert!(!picture(&view).is_ascii());
    let pools = view.pools.clone();
    let mut view = View::new(false);
    view.note(pools);
    let text = picture(&view);
    assert!(text.is_ascii(), "{text}");
    says(&text, &["node 1 -> 0 ", "####"]);
}

#[test]
fn colors_are_there_when_asked_for_and_only_then() {
    let mut view = two_pools();
    let area = Rect::new(0, 0, 80, 24);
    for has_colors in [false, true] {
        view.has_colors = has_colors;
        let mut buffer = Buffer::empty(area);
        view.draw(area, &mut buffer);
        let is_colored = buffer.content.iter().any(|cell| cell.fg != Color::Reset);
        assert_eq!(is_colored, has_colors);
    }
}

#[test]
fn keys_choose_sort_pause_and_end() {
    let mut view = two_pools();
    let chosen = |view: &View| {
        let lines = drawn(view, 80, 24);
        let line = lines.iter().find(|line| line.starts_with("> ")).cloned();
        line.expect("a pool is chosen")
            .split_whitespace()
            .nth(1)
            .map(ToOwned::to_owned)
    };
    assert!(!type_keys(&mut view, "jjj"));
    assert_eq!(chosen(&view).as_deref(), Some("/mnt/b"));
    type_keys(&mut view, "k");
    assert_eq!(chosen(&view).as_deref(), Some("/mnt/a"));
    // The pool that moves more comes first; the same one stays chosen.
    type_keys(&mut view, "s");
    assert_eq!(view.sort, Sort::Bytes);
    let lines = drawn(&view, 80, 24);
    let place = |name: &str| lines.iter().position(|line| line.contains(name));
    assert!(place("/mnt/b") < place("/mnt/a"), "{lines:?}");
    assert_eq!(chosen(&view).as_deref(), Some("/mnt/a"));
    type_keys(&mut view, "p");
    view.note(Pools::default());
    assert_eq!(chosen(&view).as_deref(), Some("/mnt/a"), "it is paused");
    type_keys(&mut view, "p");
    view.note(Pools::default());
    assert!(drawn(&view, 80, 24).join("\n").contains("no pool is up"));
    assert!(type_keys(&mut view, "q"));
    assert!(press(&mut view, KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)).is_break());
    assert!(press(&mut view, KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE)).is_break());
}

/// A pool that was unmounted from under open files, and another one on its directory.
#[test]
fn pools_of_one_name_are_chosen_one_by_one() {
    let mut view = two_pools();
    let mut detached = pool("/mnt/a", 40, 3, 1);
    Arc::make_mut(detached.report.as_mut().unwrap()).mounted = false;
    view.pools.pools.insert(0, detached);
    let chosen = |view: &View| {
        let lines = drawn(view, 80, 30);
        let at = lines.iter().position(|line| line.starts_with("> ")).unwrap();
        (lines[at][2..8].to_owned(), lines[at + 1].contains("detached"))
    };
    let mut order = vec![chosen(&view)];
    for _ in 0..2 {
        type_keys(&mut view, "j");
        order.push(chosen(&view));
    }
    let name = |name: &str| name.to_owned();
    assert_eq!(
        order,
        [(name("/mnt/a"), true), (name("/mnt/a"), false), (name("/mnt/b"), false)]
    );
}

#[test]
fn changes_of_affinity_are_told() {
    let mut view = two_pools();
    assert!(!drawn(&view, 80, 30).join("\n").contains("affinity"));
    view.pools.affinity_changes = 12;
    let all = drawn(&view, 80, 30).join("\n");
    says(
        &all,
        &["  affinity: 12 changes in force: `homenode affinity explain` tells why"],
    );
}

#[test]
fn silent_dead_and_new_servers_are_told() {
    let mut view = two_pools();
    view.pools.pools[0].silent = Some("it is stopped".to_owned());
    view.pools.dead = vec!["/mnt/dead".to_owned()];
    view.pools.pools[1].report = None;
    view.pools.pools[1].samples.clear();
    let all = drawn(&view, 120, 30).join("\n");
    says(
        &all,
        &[
            "health: /mnt/dead: its server was killed; /mnt/a: gives no status: it is stopped",
            "    gives no status: it is stopped",
            "/mnt/dead: its server was killed: `homenode down /mnt/dead` clears it",
            "  /mnt/b               asked",
        ],
    );
}

#[test]
fn threads_are_shown_with_the_homes_of_their_bytes() {
    let mut view = two_pools();
    let told = Told {
        threads: vec![Busy {
            thread: 4711,
            name: "postgres".to_owned(),
            rate: 12 * MIB,
            homes: vec![(1, 10 * MIB), (0, 2 * MIB)],
            file: Some(99),
        }],
        files: vec![(99, 9 * MIB), (7, MIB)],
        unseen: vec!["files: no BPF".to_owned()],
        is_known: true,
    };
    view.tasks = Some(Tasks::told_by(Device { major: 0, minor: 50 }, told));
    let all = drawn(&view, 100, 40).join("\n");
    let line = "    4711 postgres          12.0 MiB  → 1: 10.0 MiB, → 0: 2.00 MiB     inode 99";
    assert!(all.contains(line) && all.contains("not seen: files: no BPF"), "{all}");
    says(&all, &["busiest files: inode 99 9.00 MiB/s, inode 7 1.00 MiB/s"]);
}

/// Bound of a quarter percent of a core; the page has another quarter. A picture is drawn at most once in the wait for a key, where several pools have
/// news at different times. CPUs are told by node, so more CPUs of a node change nothing here.
#[test]
fn a_second_of_eight_nodes_costs_little() {
    let mut view = View::new(true);
    view.note(Pools {
        pools: vec![pool("/mnt/a", 50, 8, 1)],
        dead: Vec::new(),
        affinity_changes: 0,
    });
    let area = Rect::new(0, 0, 200, 60);
    let drawings = Duration::from_secs(1).as_millis() / KEY_WAIT.as_millis();
    let cost = median_cost(|| {
        for _ in 0..drawings {
            view.draw(area, &mut Buffer::empty(area));
        }
    });
    println!("{drawings} pictures of eight nodes cost {cost:?}");
    assert!(drawings == 5 && cost < Duration::from_micros(2500), "{cost:?}");
}
