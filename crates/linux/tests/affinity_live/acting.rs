//! The program that is killed: it takes back what an earlier one has left, then carries out one plan after the other.

use crate::machine::{queues, threads};
use crate::{DIRECTORY, directory, role};
use homenode_linux::affinity::act::{Actor, Hold, Kernel, Live, Outcome};
use homenode_policy::affinity::{Action, Cost, Interrupt, Plan, Reason, Snapshot, Target};
use homenode_policy::topology::{Cpu, Latency, Node, Parts, Topology};
use homenode_policy::{CpuId, NodeId};
use std::env;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Lines that the program prints before it takes back an earlier one's changes, and after its first plan.
pub(crate) const BEGINS: &str = "about to begin";
pub(crate) const HAS_ACTED: &str = "the first plan is carried out";
const SEED: &str = "HOMENODE_AFFINITY_LIVE_SEED";
const SESSION: &str = "HOMENODE_AFFINITY_LIVE_SESSION";
const PLANS: usize = 20;

/// Returns when it has said so.
pub(crate) fn start(session: u32, seed: u64, says: &str) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(role("act"))
        .stdout(Stdio::piped())
        .env(DIRECTORY, directory());
    command.env(SEED, seed.to_string()).env(SESSION, session.to_string());
    let mut child = command.spawn().unwrap();
    let stdout = child.stdout.as_mut().unwrap();
    let mut lines = BufReader::new(stdout).lines();
    assert!(lines.any(|line| line.unwrap().contains(says)));
    child
}

pub(crate) fn run(journal: &Path) {
    let number = |name: &str| env::var(name).unwrap().parse::<u64>().unwrap();
    let mut random = fastrand::Rng::with_seed(number(SEED));
    let session = u32::try_from(number(SESSION)).unwrap();
    let kernel = Live::new();
    let snapshot = snapshot(&kernel);
    println!("{BEGINS}");
    let mut actor = Actor::open(Live::new(), journal).unwrap();
    assert!(actor.revert().unwrap().is_complete());
    for number in 0..PLANS {
        let threads = threads(session).into_iter().map(Target::Thread);
        let interrupts = snapshot.interrupts.iter().map(|it| Target::Interrupt(it.number));
        let targets = threads.chain(queues()).chain(interrupts);
        let mut actions: Vec<Action> = targets
            .filter_map(|target| some_action(&kernel, target, &mut random))
            .collect();
        actions.sort_by(|a, b| a.target.cmp(&b.target));
        let plan = Plan {
            actions,
            ..Plan::default()
        };
        let applied = actor.apply(&plan, &snapshot, &[]).unwrap();
        for (target, outcome) in &applied.outcomes {
            let done = matches!(outcome, Outcome::Done | Outcome::Pending);
            // The pinned thread, and who has a mask of ours by a way that is not known.
            let held = matches!(outcome, Outcome::Withheld(Hold::Foreign));
            // Threads end, and get what their starter was given meanwhile.
            let moved = matches!(outcome, Outcome::Vanished | Outcome::Changed(_));
            let is_thread = matches!(target, Target::Thread(_));
            assert!(done || is_thread && (held || moved), "{target}: {outcome}");
        }
        if number == 0 {
            println!("{HAS_ACTED}");
        }
    }
    assert!(actor.revert().unwrap().is_complete());
}

/// To one of the first two CPUs.
fn some_action(kernel: &Live, target: Target, random: &mut fastrand::Rng) -> Option<Action> {
    let from = kernel.read(&target).ok()?.cpus().to_vec();
    let to = vec![CpuId(random.u32(0..2))];
    (from != to && random.bool()).then(|| Action {
        target,
        from,
        to,
        reason: Reason::NearDevice {
            device: String::new(),
            node: NodeId(0),
        },
        cost_before: Cost::default(),
        cost_after: Cost::default(),
    })
}

/// With an interrupt that tells of changed configurations of a virtual device, where there is one: those hardly arrive.
fn snapshot(kernel: &Live) -> Snapshot {
    let online = kernel.online().unwrap();
    let possible = kernel.possible().unwrap();
    let parts = Parts {
        nodes: vec![Node {
            cpus: possible.clone(),
            memory_bytes: 1 << 30,
            ..Node::new(NodeId(0))
        }],
        cpus: possible
            .iter()
            .map(|id| Cpu {
                id: *id,
                core: None,
                package: None,
                online: online.contains(id),
            })
            .collect(),
        possible_cpus: u32::try_from(possible.len()).unwrap(),
        caches: Vec::new(),
        latency: Latency {
            matrix: vec![vec![10]],
            ..Latency::default()
        },
        devices: Vec::new(),
    };
    let quiet = (16..512).find_map(|number| {
        let name = kernel.identity(&Target::Interrupt(number)).ok()??;
        name.ends_with("-config").then_some((number, name))
    });
    let interrupts = quiet.into_iter().map(|(number, name)| Interrupt {
        number,
        name,
        device: None,
        arrivals: Vec::new(),
        affinity: kernel.read(&Target::Interrupt(number)).unwrap().cpus().to_vec(),
        effective: kernel.effective(number).unwrap(),
        managed: false,
    });
    Snapshot {
        interrupts: interrupts.collect(),
        ..Snapshot::idle(Topology::new(parts).unwrap(), online, 1_000_000_000)
    }
}
