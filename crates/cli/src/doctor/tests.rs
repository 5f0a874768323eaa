//! Checks the doctor's text about machines of many shapes against the expected text of `golden.txt`.
//!
//! The load: a disk and a network card at home on the last node with CPUs; the card's interrupts and all threads on the
//! first one, one of them pinned there. The first node's memory is full of page cache, and files in memory are on the last.

mod commands;
#[allow(dead_code, reason = "what the tests of affinity make of it is more than these need")]
#[path = "../../../policy/tests/affinity/world.rs"]
mod world;

use super::*;
use homenode_linux::affinity::{Sensed, Unseen};
use homenode_linux::topology::read;
use homenode_policy::affinity::Target;
use homenode_policy::doctor::{Balancing, Facts, Helper, NodeMemory, Tmpfs, ZoneReclaim};
use homenode_policy::topology::Topology;
use homenode_policy::{CpuId, NodeId};
use std::fs;
use std::path::PathBuf;
use world::{MB, World};

const GOLDEN: &str = include_str!("golden.txt");
const MACHINES: [&str; 5] = [
    "one-node",
    "two-sockets-with-devices",
    "guest-four-nodes",
    "guest-memory-only",
    "guest-node-without-memory",
];

fn recorded_machines() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/topologies")
}

fn topology(name: &str) -> Topology {
    let path = recorded_machines().join(name).with_extension("xml");
    read(&Source::Xml(path)).unwrap()
}

/// CPUs that run, of the nodes that have some.
fn cpus_by_node(topology: &Topology) -> Vec<(NodeId, Vec<CpuId>)> {
    let runs = |cpu: &CpuId| topology.cpus().iter().any(|known| known.id == *cpu && known.online);
    let nodes = topology.nodes().iter();
    let running = nodes.map(|node| (node.id, node.cpus.iter().copied().filter(runs).collect::<Vec<_>>()));
    running.filter(|(_, cpus)| !cpus.is_empty()).collect()
}

fn load(topology: Topology) -> World {
    let nodes = cpus_by_node(&topology);
    let (first, home) = (nodes[0].1.clone(), nodes[nodes.len() - 1].0.0);
    let mut world = World::of(topology);
    world.add_wide_disk("disk", Some(home));
    world.add_card("card", Some(home), &[first[0].0, first[0].0]);
    for queue in 0..2 {
        let on = first[queue as usize % first.len()].0;
        let reader = world.add_thread("reader", on, 20);
        world.add_disk_bytes(reader, "disk", 300 * MB);
        let server = world.add_thread("server", on, 20);
        world.add_stream(server, "card", queue, 200 * MB);
    }
    let pinned = world.add_thread("pinned", first[0].0, 10);
    world.add_disk_bytes(pinned, "disk", 100 * MB);
    world.snapshot.threads[pinned].allowed = first[..1].into();
    let elsewhere = nodes[nodes.len() - 1].1[0].0;
    world.add_thread("compute", elsewhere, 100);
    world.observe();
    world.snapshot.interrupts[0].arrivals = vec![(first[0], 40_000)];
    world
}

fn facts(topology: &Topology) -> Facts {
    let with_memory = topology.nodes().iter().filter(|node| node.memory_bytes > 0);
    let last = with_memory.clone().next_back().map(|node| node.id);
    let memory = with_memory.enumerate().map(|(index, node)| NodeMemory {
        node: node.id,
        bytes: node.memory_bytes,
        free_bytes: if index == 0 { 8 << 20 } else { node.memory_bytes / 2 },
        cache_bytes: if index == 0 { node.memory_bytes / 2 } else { 8 << 20 },
        tmpfs_bytes: if Some(node.id) == last {
            node.memory_bytes / 4
        } else {
            0
        },
        foreign_pages: if index == 0 { 5000 } else { 0 },
        missed_pages: if index == 0 { 0 } else { 5000 },
        other_pages: if index == 0 { 0 } else { 9000 },
        interleaved_pages: 0,
    });
    Facts {
        memory: memory.collect(),
        tmpfs: vec![Tmpfs {
            at: "/dev/shm".to_owned(),
            policy: String::new(),
            used_bytes: 100 << 20,
        }],
        helpers: vec![Helper::Irqbalance],
        balancing: Some(Balancing {
            on: true,
            hint_faults: 90_000,
            migrated_pages: 12,
        }),
        zone_reclaim: Some(ZoneReclaim { mode: 1, reclaims: 3 }),
        fuse_rings: Some(false),
        ..Facts::default()
    }
}

/// A period of these threads, about which nothing else is known.
fn examined(snapshot: Snapshot) -> Examined {
    Examined {
        sensed: Sensed {
            snapshot,
            cards: Vec::new(),
            unseen: Vec::new(),
        },
        facts: Facts::default(),
        kernel: None,
        is_virtual: None,
    }
}

fn judged(name: &str, topology: Topology) -> Judged {
    let facts = facts(&topology);
    let unseen = Unseen {
        what: "disk bytes\nof threads".to_owned(),
        why: "\u{1b}[31mnot root".to_owned(),
    };
    let mut examined = Examined {
        facts,
        kernel: Some("6.1.0".to_owned()),
        is_virtual: Some(false),
        ..examined(load(topology).snapshot)
    };
    examined.sensed.unseen.push(unseen);
    Judged::new(Source::Xml(name.into()), examined)
}

/// Set HOMENODE_TABLE to a file to have the text written there, after a change that is meant.
#[test]
fn verdicts_match_the_golden_file() {
    let told: String = MACHINES
        .iter()
        .map(|name| format!("# {name}\n{}\n", text::of(&judged(name, topology(name)))))
        .collect();
    if let Some(file) = std::env::var_os("HOMENODE_TABLE") {
        fs::write(file, &told).unwrap();
    }
    for (told, expected) in told.lines().zip(GOLDEN.lines()) {
        assert_eq!(told, expected, "differs from crates/cli/src/doctor/golden.txt");
    }
    assert_eq!(
        told.lines().count(),
        GOLDEN.lines().count(),
        "HOMENODE_TABLE=FILE writes it"
    );
}

#[test]
fn text_and_json_agree_on_every_machine() {
    for file in fs::read_dir(recorded_machines()).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "xml") {
            continue;
        }
        let judged = judged("machine", read(&Source::Xml(path.clone())).unwrap());
        let text = text::of(&judged);
        let json = serde_json::to_value(json::of(&judged)).unwrap();
        let nodes = judged.examined.sensed.snapshot.topology.nodes().len();
        assert_eq!(
            text.starts_with("nothing to gain here: there is one node"),
            nodes == 1,
            "{path:?}: {text}"
        );
        assert_eq!(json["verdict"] == "one-node", nodes == 1, "{json}");
        let findings = json["findings"].as_array().unwrap();
        for finding in findings {
            for part in ["object", "detail", "benefit", "command"] {
                let part = finding[part].as_str().unwrap();
                assert!(!part.is_empty() && text.contains(part), "{path:?}: {part}: {text}");
            }
        }
        let gains: Vec<f64> = findings
            .iter()
            .map(|one| one["gain_mb_s"].as_f64().unwrap_or(0.0))
            .collect();
        assert!(gains.is_sorted_by(|a, b| a >= b), "{path:?}: {gains:?}");
        assert!(
            text.ends_with("could not be seen:\n  disk bytes\\nof threads: \\u{1b}[31mnot root\n"),
            "{text}"
        );
        assert_eq!(json["machine"]["topology"]["nodes"].as_array().unwrap().len(), nodes);
    }
}

#[test]
fn first_line_says_so_if_all_traffic_is_local() {
    let judged = Judged::new(Source::Live, examined(World::new(&[2, 2], 20, 2).snapshot));
    let text = text::of(&judged);
    let first = text.lines().next().unwrap();
    assert_eq!(
        first,
        "nothing to gain here: in 1.0 s all was local, or could not be nearer"
    );
    let json = serde_json::to_value(json::of(&judged)).unwrap();
    assert_eq!(
        (&json["verdict"], &json["gain_mb_s"]),
        (&"all-local".into(), &0.0.into())
    );
    assert_eq!(json["findings"], serde_json::json!([]));
}

#[test]
fn the_plan_for_this_machine_follows_its_configuration() {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        settings: SettingsArgs,
    }
    let plan = |policy| {
        let line = <Line as clap::Parser>::parse_from(["doctor", "--policy", policy]);
        let snapshot = load(topology("two-sockets-with-devices")).snapshot;
        Here::of(&snapshot, &line.settings).plan
    };
    assert_eq!(plan("off").actions.len(), 0);
    let moves_interrupts = || {
        let plan = plan("local");
        plan.actions
            .iter()
            .any(|action| matches!(action.target, Target::Interrupt(_)))
    };
    assert!(moves_interrupts());
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // Interrupts are left to a program of root with this name, which is a finding of its own; the plan tells what it prevents.
    let directory = tempfile::tempdir().unwrap();
    let fake = directory.path().join("irqbalance");
    fs::copy("/bin/sleep", &fake).unwrap();
    let mut process = std::process::Command::new(&fake).arg("60").spawn().unwrap();
    while fs::read(format!("/proc/{}/comm", process.id())).unwrap() != b"irqbalance\n" {
        std::thread::yield_now();
    }
    let moves = moves_interrupts();
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(moves);
}
