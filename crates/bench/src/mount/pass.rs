//! A timed pass of one contestant: every client of a case works at the same time.
//!
//! Clients prepare (open files, decide the order), then wait; the server's clock of CPU time is read while nobody works,
//! before and after. Each client reads its clock twice, not once per operation. Barriers sleep: under a real-time priority
//! spinning clients would keep each other, and the servers, from ever running.

use super::contestant::Contestant;
use super::subjects::{Case, Work};
use super::{names, transfer};
use crate::cpus;
use crate::error::Error;
use std::io;
use std::sync::Barrier;
use std::time::Instant;

/// A client that is ready to work.
pub(super) trait Client: Send {
    /// Does it, all of it: this is timed.
    fn run(&mut self) -> io::Result<()>;
    /// Whether it had the effect it should have had.
    fn is_right(&mut self) -> io::Result<bool>;
}

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
    let clients = pass.case.clients;
    let (prepared, go) = (Barrier::new(clients + 1), Barrier::new(clients + 1));
    let system = |error| Error::system(format!("{} on {}", pass.name, contestant.name()), error);
    let client = |number: usize| {
        let client = prepare(contestant, pass, number);
        // Both on errors too, or the others would wait for ever.
        prepared.wait();
        go.wait();
        let mut client = client?;
        let start = Instant::now();
        client.run().map_err(system)?;
        let elapsed_ns = start.elapsed().as_secs_f64() * 1e9;
        Ok((elapsed_ns, client))
    };
    std::thread::scope(|scope| {
        let client = &client;
        let threads: Vec<_> = (0..clients).map(|number| scope.spawn(move || client(number))).collect();
        prepared.wait();
        let before = contestant.cpu_time();
        go.wait();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<_, Error>>| match thread.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let done: Vec<Result<_, Error>> = threads.into_iter().map(join).collect();
        let after = contestant.cpu_time();
        let mut longest_ns: f64 = 0.0;
        for done in done {
            let (elapsed_ns, mut client) = done?;
            longest_ns = longest_ns.max(elapsed_ns);
            if !client.is_right().map_err(system)? {
                return Err(Error::WrongBytes {
                    case: pass.name.to_owned(),
                    contestant: contestant.name(),
                });
            }
        }
        let cpu_ns = before?.zip(after?).map(|(before, after)| after.since(before).ns);
        Ok((longest_ns, cpu_ns))
    })
}

fn prepare<'a>(contestant: &'a Contestant, pass: &Pass<'_>, number: usize) -> Result<Box<dyn Client + 'a>, Error> {
    if pass.case.pinned {
        cpus::pin(pass.cpus[number])?;
    }
    let seed = pass.seed.wrapping_add(number as u64);
    match pass.case.work {
        Work::Transfer(transfer) => {
            let file = contestant.open(number, transfer.direct)?;
            transfer::prepare(file, transfer, pass, seed)
        }
        Work::Names(names) => names::prepare(contestant.names(), names, pass.operations, seed),
    }
}
