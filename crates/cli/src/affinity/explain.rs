//! `homenode affinity explain`: why a thread, an interrupt or a queue is where it is, and whether it would move.

mod json;
mod story;

use super::card_advice::advice;
use super::known::JournalArgs;
use super::look::LookArgs;
use super::settings::{Settings, SettingsArgs};
use super::target::Asked;
use super::words::{plain, seconds, unseen};
use crate::failure::{Result, fail};
use clap::Args;
use homenode_policy::affinity::Target;
use std::path::Path;
use story::Story;

/// Explain the placement of a thread, an interrupt or a queue: its traffic, and why it moves or stays.
#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    /// 4711 (a thread or process), irq:38 (an interrupt), eth0/tx-0, eth0/rx-0 or nvme0n1/0 (a queue), or a name (of a
    /// device, a process or a thread).
    #[arg(value_name = "TARGET")]
    target: Asked,
    #[command(flatten)]
    look: LookArgs,
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    journal: JournalArgs,
    /// Print JSON: all observations of each target, and its action or the reason why it stays.
    /// Actions and reasons are as in `plan --json`.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &ExplainArgs) -> Result<()> {
    let settings = Settings::read(&args.settings)?;
    let sensed = args.look.look()?;
    let snapshot = &sensed.snapshot;
    let found = args.target.find(snapshot);
    let mut known = args.look.known(&args.journal, &settings);
    let plan = known.decide(snapshot, &settings);
    let story = Story {
        snapshot,
        cards: &sensed.cards,
        advice: &advice(&sensed, &plan),
        plan: &plan,
        known: &known,
        is_live: args.look.is_live(),
    };
    if args.json && (!found.is_nothing() || is_idle(&args.target, args.look.is_live())) {
        return crate::print_json(&json::of(&story, &found, &sensed.unseen, args.look.source()));
    }
    if found.is_nothing() {
        return of_unseen(&args.target, &story, args.look.is_live());
    }
    let threads = found.threads.iter().map(|thread| story.of_thread(thread));
    let interrupts = found.interrupts.iter().map(|interrupt| story.of_interrupt(interrupt));
    let queues = found.queues.iter().map(|queue| story.of_queue(queue));
    let told: Vec<String> = threads.chain(interrupts).chain(queues).collect();
    let mut text = told.join("\n");
    let unseen = unseen(&sensed.unseen);
    if !unseen.is_empty() {
        text += &format!("\n{unseen}");
    }
    crate::print_text(&text)
}

/// A thread that is there, and nothing to be placed: it did nothing, or is the kernel's.
fn is_idle(asked: &Asked, is_live: bool) -> bool {
    matches!(asked, Asked::Thread(id) if is_live && Path::new(&format!("/proc/{id}")).exists())
}

/// It is not in the snapshot: not there at all, or idle.
fn of_unseen(asked: &Asked, story: &Story<'_>, is_live: bool) -> Result<()> {
    let snapshot = story.snapshot;
    let period = seconds(snapshot.period_ns);
    match asked {
        Asked::Thread(id) if is_idle(asked, is_live) => {
            let of_it = |target: &&Target| matches!(target, Target::Thread(known) if known.thread == *id);
            let changed = story.known.changed.iter().map(|changed| &changed.target).find(of_it);
            let set = changed.map(|target| story.set(target)).unwrap_or_default();
            crate::print_text(&format!(
                "thread {id} did nothing in {period}, or is a kernel thread: homenode does not place it\n{set}"
            ))
        }
        Asked::Thread(id) => fail!("no thread or process {id} did anything in {period}: does it run, and is it busy?"),
        Asked::Interrupt(number) => fail!("there is no interrupt {number} of a device: /proc/interrupts lists them"),
        Asked::Queue(device, ..) if snapshot.topology.devices().iter().any(|known| known.name == *device) => {
            let known = snapshot.queues.iter().filter(|queue| queue.device == *device);
            let known: Vec<String> = known.map(story::queue_name).collect();
            if known.is_empty() {
                fail!("{device} has no visible queues");
            }
            fail!("{device} has no such queue; it has {}", known.join(", "))
        }
        Asked::Queue(device, ..) => fail!(
            "there is no disk or card {}: `homenode topology` lists them",
            plain(device)
        ),
        Asked::Name(name) => fail!(
            "no device, and no process or thread that did anything in {period}, is named {}",
            plain(name)
        ),
    }
}
