//! `homenode blk replay`: submits what a trace says again, when it says, each core's requests by a thread of its own.

mod outcome;
mod player;
mod trace;

use crate::failure::{Cannot, Failure, Result, chain, fail, plain};
use crate::mountinfo::shown;
use crate::progress::INTERRUPTED_EXIT_CODE;
use crate::{print_json, print_text};
use homenode::NodeId;
use homenode::blk::{
    Arena, Device, Driver, Limits, Null, Options, Ram, Scheduling, Shares, Storage, Stream, UringFile, UringOptions,
};
use outcome::Outcome;
use player::Player;
use signal_hook::consts::SIGINT;
use signal_hook::flag;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use trace::Trace;

/// Submit the requests of a trace again, to any device.
///
/// A thread for each core submits that core's requests, at the times in the trace or as fast as the device takes them. A trace does not hold
/// the written bytes, so writes write zeros. A trace without changes needs no permission to write to FILE. Ctrl-C ends the replay and prints
/// the results so far.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Trace file.
    trace: PathBuf,
    /// Target of the requests: `null` does nothing, `ram` is memory of the device's size, any other value is a file or disk.
    #[arg(long, value_name = "null|ram|FILE", default_value = "null")]
    device: String,
    /// Allow the trace's writes, discards and zeros to overwrite the contents of FILE.
    #[arg(long)]
    overwrite: bool,
    /// Bypass the page cache of FILE.
    #[arg(long)]
    direct: bool,
    /// Submit requests as fast as possible instead of at the times in the trace.
    #[arg(long)]
    asap: bool,
    /// Order of waiting requests.
    #[arg(long, value_enum, default_value_t = SchedulerName::None)]
    scheduler: SchedulerName,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum SchedulerName {
    /// First come, first served.
    None,
    /// Offset order, reads first, within deadlines.
    Deadline,
    /// Equal shares for all streams.
    Fair,
}

/// Requests of a core that are under way at a time.
const DEPTH: u16 = 128;
/// Memory for the requests of all cores.
const BUFFERS_MAX: u64 = 1 << 30;

pub(crate) fn run(args: &Args) -> Result<()> {
    let trace = Trace::read(&args.trace)?;
    let cores = trace.cores.len();
    let depth = (BUFFERS_MAX / u64::from(trace.bytes_max) / cores as u64).min(u64::from(DEPTH));
    if depth == 0 {
        fail!(
            "{}: its longest request has {} bytes of data, and one for each of its {cores} cores takes more than the limit of {} MiB \
             for buffers: it cannot be replayed",
            shown(&args.trace),
            trace.longest,
            BUFFERS_MAX >> 20,
        );
    }
    let arena = |bytes: u64| Arena::new(bytes, None).map_err(|error| Failure::new(chain(&error)));
    let buffers = arena(depth * u64::from(trace.bytes_max) * cores as u64)?;
    let homes = vec![None; cores];
    let outcome = match args.device.as_str() {
        "null" => {
            let limits = Limits {
                has_cache: true,
                can_discard: true,
                can_zero: true,
                ..Limits::of_bytes(trace.device_bytes)
            };
            play(&Null::new(limits, &homes), &trace, args, depth)?
        }
        "ram" => {
            let storage = Storage::Arena(arena(trace.device_bytes)?);
            play(&Ram::new(storage, buffers, &homes), &trace, args, depth)?
        }
        file => {
            let name = shown(file.as_ref());
            if trace.has_changes && !args.overwrite {
                fail!("{name}: the trace writes to its device: give --overwrite if the contents of {name} may be lost");
            }
            let options = UringOptions {
                direct: args.direct,
                read_only: !trace.has_changes,
                queues: cores,
                ..UringOptions::default()
            };
            if is_same(&args.trace, file.as_ref()) {
                fail!("{name} is the trace itself: it cannot be the device");
            }
            let opened = UringFile::open(file.as_ref(), buffers, options);
            let opened = opened.map_err(|error| Failure::new(plain(&chain(&error))))?;
            let (bytes, needed) = (opened.limits().device_bytes, trace.device_bytes);
            if bytes < needed {
                fail!("{name} has {bytes} bytes, and the device of the trace {needed}: name one as large");
            }
            play(&opened, &trace, args, depth)?
        }
    };
    if args.json {
        print_json(&outcome)?;
    } else {
        print_text(&outcome.to_string())?;
    }
    if outcome.is_interrupted() {
        complain!("homenode: interrupted: the results so far are above");
        std::process::exit(INTERRUPTED_EXIT_CODE);
    }
    match outcome.not_done() {
        0 => Ok(()),
        count => fail!(
            "{}: {count} of its requests failed, as listed above",
            shown(&args.trace)
        ),
    }
}

/// Whether both are one file.
fn is_same(trace: &Path, device: &Path) -> bool {
    let file = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    file(trace).is_ok_and(|trace| file(device).is_ok_and(|device| device == trace))
}

/// Returns a flag that Ctrl-C sets. A second Ctrl-C ends the process at once, should a device answer no more.
fn watch() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    // In this order: the second handler is the one that sets it.
    let watched = flag::register_conditional_shutdown(SIGINT, INTERRUPTED_EXIT_CODE, Arc::clone(&interrupted))
        .and_then(|_| flag::register(SIGINT, Arc::clone(&interrupted)));
    watched.cannot("listen for signals")?;
    Ok(interrupted)
}

fn play<D: Driver>(driver: &D, trace: &Trace, args: &Args, depth: u64) -> Result<Outcome> {
    let scheduling = match args.scheduler {
        SchedulerName::None => Scheduling::None,
        SchedulerName::Deadline => Scheduling::Deadline,
        SchedulerName::Fair => Scheduling::Fair(vec![Stream::default(); 64], Shares::new()),
    };
    let options = Options {
        scheduling,
        ..Options::default()
    };
    let nodes = vec![NodeId(0); trace.cores.len()];
    let set_up = Device::new(driver, &nodes, |_, _| 10, options);
    let device: Arc<Device<D::Queue>> =
        set_up.map_err(|error| Failure::new(format!("{}: {error}", shown(args.device.as_ref()))))?;
    let interrupted = watch()?;
    let player = Player {
        begin_ns: trace.begin_ns,
        asap: args.asap,
        depth,
        bytes_max: trace.bytes_max,
        interrupted: &interrupted,
    };
    let played = player.play(&device, &trace.cores);
    Ok(Outcome::new(&device, played, trace))
}
