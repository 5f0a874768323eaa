//! Four threads that look after files of the kernel, as long as a mount serves them.
//!
//! `promises` and `beyond` look whether there is room for what fallocate has promised, inside and beyond the ends of files:
//! every 20 ms, every 5 ms while something is promised. `beyond` waits for writers of these files, maybe for ever. `promises`
//! also looks whether room that was given ahead can be taken back. `room` keeps free memory on each node for pages to come.
//! `steering` looks which nodes have room for such pages, puts files that grew and rest in huge pages, and lends what volumes gave up;
//! its steps may take longer.
//!
//! Cost: a look at three counters each period while something is promised, and at a list that is empty otherwise; a meminfo of each node
//! on machines of several nodes; and, once files could fill a node, a look where they lie: 1 % of a CPU, 20 % while a node
//! is nearly full and files grow.

use crate::Error;
use crate::machine::Machine;
use crate::periodic::Periodic;
use crate::pool::EngineFs;
use homenode_engine::BLOCK_BYTES;
use homenode_engine::fs::Promised;
use homenode_linux::room::RoomKeeper;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two looks.
const PERIOD: Duration = Duration::from_millis(20);
/// Time between two looks while something is promised: writers at 13 GB/s take less in it than the margin of promises.
const PROMISED_PERIOD: Duration = Duration::from_millis(5);
/// Time between two looks whether volumes have given room up: they may want it again.
const LEND_PERIOD: Duration = Duration::from_secs(1);
/// Time between two lines of the log about broken promises.
const TOLD_PERIOD: Duration = Duration::from_secs(60);
/// Looking where files lie takes at most one part in this many of a CPU, while they grow and a node may get fat.
const STEERING_REST: u32 = 5;
/// Rest between looks while no node may change, in multiples of a look's time.
const DUE_REST: u32 = 100;
/// Putting files in huge pages takes at most one part in this many of a CPU.
const COLLAPSE_REST: u32 = 10;
/// Rest of a thread of promises while the other one alone has something to do, in multiples of a look's time.
const IDLE_REST: u32 = 10;
/// Longest such rest after a short look: new promises wait for it.
const IDLE_REST_MAX: Duration = Duration::from_millis(100);
/// Longest rest after a long look, which rests as long as it took: many small promises of one user take half a CPU at most.
const LONG_REST_MAX: Duration = Duration::from_secs(1);
/// Time for `beyond` to end, far more than a step of its takes that waits for nobody.
const BEYOND_PATIENCE: Duration = Duration::from_secs(1);

/// Time for a thread to end that looks where files lie, or moves one: a large file takes minutes.
pub(crate) const LOOK_PATIENCE: Duration = Duration::from_secs(5);

/// Starts the threads.
pub(crate) fn start(fs: &Arc<EngineFs>, machine: &Machine) -> Result<[Periodic; 4], Error> {
    let promising = Arc::clone(fs);
    let mut keep_inside = keep(fs, Promised::Inside);
    let promises = Periodic::start("promises", move || {
        let rest = keep_inside();
        promising.settle_ahead();
        rest
    })?;
    let beyond = Periodic::start("beyond", keep(fs, Promised::Beyond))?.left_after(BEYOND_PATIENCE);
    let roomy = Arc::clone(fs);
    let nodes: Vec<_> = machine.with_memory().map(|node| node.id).collect();
    let mut rooms = RoomKeeper::new(&nodes);
    // By itself: it cannot wait while the others look at large files.
    let room = Periodic::start("room", move || {
        let wanted = roomy.pool().room_of_files().saturating_mul(BLOCK_BYTES as u64);
        let rest = rooms.keep(wanted);
        roomy.pool().note_starved(&rooms.starved());
        rest
    })?;
    let fs = Arc::clone(fs);
    let now = Instant::now();
    let (mut next_steering, mut next_due, mut next_collapse, mut lent) = (now, now, now, now);
    let steering = Periodic::start("steering", move || {
        let start = Instant::now();
        if start >= next_steering {
            fs.steer_files(start >= next_due);
            let took = start.elapsed();
            next_steering = start + took * STEERING_REST;
            next_due = next_due.max(start + took * DUE_REST);
        }
        let start = Instant::now();
        if start >= next_collapse {
            fs.collapse_rested();
            next_collapse = start + start.elapsed() * COLLAPSE_REST;
        }
        if lent.elapsed() >= LEND_PERIOD {
            fs.lend_discarded();
            lent = Instant::now();
        }
        PERIOD
    })?;
    let steering = steering.left_after(LOOK_PATIENCE);
    Ok([promises, beyond, room, steering])
}

/// A look at promises, which returns the time until the next one.
fn keep(fs: &Arc<EngineFs>, promised: Promised) -> impl FnMut() -> Duration + Send + use<> {
    let fs = Arc::clone(fs);
    let (mut broken, mut told) = (0, None::<Instant>);
    move || {
        let start = Instant::now();
        let found = fs.keep_promises(promised);
        let took = start.elapsed();
        broken += found.unwrap_or(0) * BLOCK_BYTES as u64;
        if broken > 0 && told.is_none_or(|told| told.elapsed() >= TOLD_PERIOD) {
            tracing::warn!(
                "{broken} bytes that fallocate promised found no room: others filled the pool faster than the kernel allocated \
                 them; a pool with `--data pool` keeps such promises"
            );
            (broken, told) = (0, Some(Instant::now()));
        }
        let period = if fs.has_promises() { PROMISED_PERIOD } else { PERIOD };
        rest(period, took, found.is_none())
    }
}

/// Time between a look at promises, which took so long, and the next one; longer than `period` only where the look left all to the other thread.
fn rest(period: Duration, took: Duration, is_idle: bool) -> Duration {
    let longer = if is_idle { took * IDLE_REST } else { Duration::ZERO };
    period.max(longer.min(took.clamp(IDLE_REST_MAX, LONG_REST_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn look_that_did_something_or_hung_is_followed_by_another_soon() {
        let ms = Duration::from_millis;
        for (took, is_idle, expected) in [
            (ms(3_600_000), false, PROMISED_PERIOD),
            (ms(3_600_000), true, ms(1000)),
            (ms(700), true, ms(700)),
            (ms(20), true, ms(100)),
            (ms(2), true, ms(20)),
            (ms(0), true, PROMISED_PERIOD),
        ] {
            assert_eq!(rest(PROMISED_PERIOD, took, is_idle), expected, "{took:?}");
        }
    }
}
