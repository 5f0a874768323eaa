//! A timed pass of one contestant: every client of a case works at the same time.
//!
//! Clients prepare (open files, decide the order), then wait; the server's clock of CPU time is read while nobody works,
//! before and after.

use super::contestant::Contestant;
use super::subjects::{Case, Work};
use super::{names, transfer};
use crate::cpus;
use crate::error::Error;
use crate::pass;
use crate::place::Open;

/// Terms of a pass that all contestants of a round share.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    pub(super) case: &'a Case,
    pub(super) name: &'a str,
    pub(super) file_bytes: usize,
    /// Number of operations of each client.
    pub(super) operations: usize,
    /// CPUs of the clients, one for each.
    pub(super) cpus: &'a [usize],
    /// Decides the order and the bytes written.
    pub(super) seed: u64,
}

/// Result of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// Longest time of a client over the operations of one client.
    pub(super) ns: f64,
    /// CPU time of the server over the operations of all clients, if there is a server.
    pub(super) server_cpu_ns: Option<f64>,
    /// Requests that reached the server in the pass, its preparation and its check; `None` without a server.
    pub(super) requests: Option<u64>,
}

/// Runs the pass.
pub(super) fn time(contestant: &mut Contestant, pass: &Pass<'_>) -> Result<Outcome, Error> {
    let before = contestant.requests()?;
    let (elapsed_ns, cpu_ns) = run_clients(contestant, pass)?;
    let requests = contestant.requests()?.zip(before).map(|(after, before)| after - before);
    let all_operations = pass.operations * pass.case.clients;
    // Operations that the kernel answers itself do not measure a transport.
    if let Some(requests) = requests.filter(|&requests| requests < all_operations as u64) {
        return Err(Error::Bypassed {
            case: pass.name.to_owned(),
            contestant: contestant.name(),
            requests,
            operations: all_operations,
        });
    }
    Ok(Outcome {
        ns: elapsed_ns / pass.operations as f64,
        server_cpu_ns: cpu_ns.map(|ns| ns as f64 / all_operations as f64),
        requests,
    })
}

/// The longest time of a client, and what the server took meanwhile.
fn run_clients(contestant: &Contestant, pass: &Pass<'_>) -> Result<(f64, Option<u64>), Error> {
    let direct = matches!(pass.case.work, Work::Transfer(transfer) if transfer.direct);
    let open = |number| Ok(Open::Directory(contestant.open(number, direct)?.into()));
    let files: Vec<Open> = (0..pass.case.clients).map(open).collect::<Result<_, Error>>()?;
    let clients: Vec<_> = files.iter().zip(pass.cpus).zip(pass.seed..).collect();
    let meter = || contestant.cpu_time();
    let (ns, [before, after]) = pass::time(pass.name, contestant.name(), clients, meter, |((file, &cpu), seed)| {
        if pass.case.pinned {
            cpus::pin(cpu)?;
        }
        match pass.case.work {
            Work::Transfer(transfer) => transfer::prepare(file, transfer, pass, seed),
            Work::Names(names) => names::prepare(contestant.names(), names, pass.operations, seed),
        }
    })?;
    Ok((ns, before?.zip(after?).map(|(before, after)| after.since(before).ns)))
}
