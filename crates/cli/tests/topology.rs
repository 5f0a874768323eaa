//! `homenode topology` and `homenode member list` through the real binary.

#[path = "../../../tests/topologies/facts.rs"]
mod facts;

#[path = "support/command.rs"]
mod support;

use std::path::{Path, PathBuf};
use support::{homenode, says};

fn recorded(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/topologies")
        .join(name)
}

fn shown(arguments: &[&str]) -> String {
    support::shown(&mut homenode(arguments))
}

/// Runs a command that must fail with exit code `code` and a message on one subject; gives the message.
fn refused(code: i32, from: &str) -> String {
    support::fail(code, &mut homenode(["topology", "--from", from]))
}

#[test]
fn a_tree_and_a_table_for_people_and_json_for_programs() {
    let cxl = recorded("cxl.xml");
    let text = shown(&["topology", "--from", cxl.to_str().unwrap()]);
    assert!(text.contains("├─ node 1: memory-only (CXL), 128 GiB, 240 ns"), "{text}");
    assert!(text.contains("\n  node 2  150  320   85  240\n"), "{text}");

    let json = shown(&["topology", "--json", "--from", cxl.to_str().unwrap()]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["output_version"], 1);
    assert_eq!(json["nodes"][1]["kind"], "memory-only");
    assert_eq!(json["latency"]["source"], "hmat");
    assert_eq!(json["latency"]["matrix"][2][1], 320);
    assert_eq!(json["cpu_nodes"].as_array().unwrap().len(), 16);
}

/// Nodes, CPUs, distances and homes of devices, as the facts beside each machine have them.
#[test]
fn shows_every_recorded_machine() {
    for machine in facts::machines() {
        let text = shown(&["topology", "--from", machine.xml.to_str().unwrap()]);
        let nodes: Vec<&str> = text.lines().filter(|line| line.contains("─ node ")).collect();
        assert_eq!(nodes.len(), machine.nodes.len(), "{text}");
        for (line, node) in nodes.iter().zip(&machine.nodes) {
            let kind = match (node.kib > 0, node.cpus.is_empty()) {
                (true, false) => "dram",
                (true, true) => "memory-only",
                (false, false) => "cpu-only",
                (false, true) => "empty",
            };
            assert!(line.contains(&format!("─ node {}: {kind}", node.id)), "{line}");
            assert_eq!(line.contains("CPUs"), !node.cpus.is_empty(), "{line}");
        }
        let shown_rows = || text.lines().filter(|line| line.starts_with("  node "));
        for node in &machine.nodes {
            let start = format!("  node {} ", node.id);
            let row: Option<Vec<u32>> = shown_rows().find(|line| line.starts_with(&start)).map(|line| {
                let values = line[start.len()..].split_whitespace();
                values.map(|value| value.parse().unwrap()).collect()
            });
            // One node has no distances to others.
            let wanted = node.distances.clone().filter(|_| machine.nodes.len() > 1);
            assert_eq!(row, wanted, "{text}");
        }

        let json = shown(&["topology", "--json", "--from", machine.xml.to_str().unwrap()]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let name = &machine.name;
        assert_eq!(json["latency"]["source"], machine.latency, "{name}");
        for (index, node) in machine.nodes.iter().enumerate() {
            let shown = &json["nodes"][index];
            assert_eq!(shown["node"], node.id, "{name}");
            assert_eq!(shown["memory_bytes"], node.kib << 10, "{name}");
            assert_eq!(shown["cpus"], serde_json::json!(node.cpus), "{name}");
            if let Some(distances) = &node.distances {
                assert_eq!(json["latency"]["matrix"][index], serde_json::json!(distances), "{name}");
            }
        }
        let cpus = json["cpus"].as_array().unwrap();
        assert!(
            cpus.iter().map(|cpu| &cpu["cpu"]).eq(machine.present.iter()),
            "{name}: {cpus:?}"
        );
        let online = cpus.iter().filter(|cpu| cpu["online"] == true).map(|cpu| &cpu["cpu"]);
        assert!(online.eq(machine.online.iter()), "{name}: {cpus:?}");
        // A file knows nothing of CPUs that are not there.
        assert!(
            json["cpu_nodes"].as_array().unwrap().len() <= machine.possible.len(),
            "{name}"
        );
        let devices = json["devices"].as_array().unwrap();
        assert_eq!(devices.len(), machine.devices.len(), "{name}: {devices:?}");
        for device in &machine.devices {
            let shown = devices.iter().find(|shown| shown["name"] == device.name.as_str());
            let shown = shown.unwrap_or_else(|| panic!("{name}: {device:?} in {devices:?}"));
            assert_eq!(shown["kind"], device.kind.as_str(), "{name}");
            assert_eq!(shown["home"], serde_json::json!(device.home), "{name}");
        }
    }
}

#[test]
fn topology_and_member_list_show_this_machine() {
    assert!(shown(&["topology"]).starts_with("this machine: "));
    let json: serde_json::Value = serde_json::from_str(&shown(&["member", "list", "--json"])).unwrap();
    assert_eq!(json["output_version"], 1);
    let first = &json["members"][0];
    assert!(first["bytes"].as_u64().unwrap() > 0, "{first}");
    assert!(shown(&["member", "list"]).starts_with("MEMBER "));
}

#[test]
fn bad_topology_sources_are_named() {
    for (code, from) in [
        (2, "garbage"),
        (1, "node:4 core:"),
        (1, "/nonexistent/machine.xml"),
        (1, "/etc/passwd"),
        (1, "/"),
    ] {
        let message = refused(code, from);
        assert!(message.contains(from), "{message}");
        assert!(message.lines().count() <= 3, "one message: {message}");
    }
}

#[test]
fn a_topology_file_that_crashes_hwloc_is_refused() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("damaged.xml");
    let whole = std::fs::read_to_string(recorded("cxl.xml")).unwrap();
    let complete = " complete_cpuset=\"0x00000004\"";
    assert!(whole.contains(complete));
    std::fs::write(&file, whole.replace(complete, "")).unwrap();
    let message = refused(1, file.to_str().unwrap());
    says(&message, &[file.to_str().unwrap(), "lstopo"]);
}
