//! An outcome of a machine that need not exist, for tests.

use crate::control::protocol::tests::member;
use crate::demo::contestants::{Case, Contestant, Section};
use crate::demo::outcome::*;
use homenode::{Access, MemberState, MemberStatus, NodeId, Spill, Status};
use homenode_linux::topology::{Source, read};
use std::collections::BTreeMap;

/// On the machine of this synthetic description: files of the kernel are absent; half of what the last node's thread wrote went to
/// the first.
pub(in crate::demo) fn outcome(machine: &str) -> Outcome {
    let topology = read(&Source::Synthetic(machine.to_owned())).unwrap();
    let last = topology.nodes().last().unwrap().id.0;
    let cell = |from, home, bytes| Access {
        from: NodeId(from),
        home: NodeId(home),
        operations: 1,
        read_bytes: bytes,
        written_bytes: 0,
    };
    let member = |home: NodeId| MemberStatus {
        home,
        backing: "tmpfs".to_owned(),
        capacity_bytes: 1 << 30,
        used_bytes: 300 << 20,
        populated_bytes: 400 << 20,
        ..member(home.0, MemberState::Candidate)
    };
    let pool = PoolReport {
        contestant: Contestant::Pool,
        state: Status {
            members: topology.nodes().iter().map(|node| member(node.id)).collect(),
            accesses: vec![cell(0, 0, 3 << 20), cell(last, 0, 1 << 20)],
            spills: vec![Spill {
                from: NodeId(last),
                home: NodeId(0),
                bytes: 2 << 20,
            }],
            ..Status::default()
        },
        files: vec![Files {
            what: format!("written by a thread on node {last}"),
            written_from: Some(last),
            bytes_by_node: BTreeMap::from([(0, 4 << 20), (last, 4 << 20)]),
        }],
    };
    let row = |section, index: usize, cells: &[(Contestant, f64)]| {
        let mut row = Row::new(Case::all(section).swap_remove(index));
        for &(one, value) in cells.iter().chain(cells) {
            row.cells.entry(one).or_default().push(value);
        }
        row
    };
    let peers = [(Contestant::Tmpfs, 2.0), (Contestant::TmpfsHuge, 4.0)];
    let with = |one, value| [peers[0], peers[1], (one, value)];
    Outcome {
        output_version: 1,
        headline: "Headline <of> a test.".to_owned(),
        findings: vec!["A finding & more.".to_owned()],
        limits: vec!["A limit.".to_owned()],
        machine: Machine {
            command_line: "homenode demo --tree '<script>'".to_owned(),
            ..Machine::default()
        },
        settings: Settings::default(),
        absent: vec![Absent {
            contestant: Contestant::Kernel,
            reason: "the reason".to_owned(),
        }],
        transports: vec![TransportTaken {
            contestant: Contestant::Pool,
            reason: "it was asked for".to_owned(),
        }],
        trees: Vec::new(),
        rows: vec![
            row(Section::InProcess, 0, &with(Contestant::Library, 8.0)),
            row(Section::InProcess, 1, &with(Contestant::Library, 2.0)),
            row(Section::Fio, 0, &with(Contestant::Pool, 2.0)),
            row(Section::FioDirect, 0, &with(Contestant::Pool, 1.0)),
        ],
        pools: vec![pool],
        topology,
    }
}
