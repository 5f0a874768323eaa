//! Threads that move bytes through sockets of a network: in each pair one sends a message again and again, and another
//! receives it.
//!
//! The network is a pair of virtual cards, as what goes over the loopback is nobody's network to core affinity. One is in a
//! network namespace of its own, with the senders' sockets; the other is on this machine while the pairs are. Both go with the
//! namespace, which ends with this process at the latest.

use crate::error::Error;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const MESSAGE_BYTES: usize = 16 << 10;
/// Between two messages: 50 a second, so that 100 pairs move some 80 MB/s and leave most of a small machine idle.
const PAUSE: Duration = Duration::from_millis(20);
/// Address of the senders, in the network that RFC 2544 reserves for measurements.
const FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 76, 2);
const MAKE_FAR: &str = "ip link add far type veth peer name $0 netns $1; ip address add 198.18.76.2/30 dev far; ip link set far up; echo; exec cat";
const MAKE_NEAR: &str = "ip address add 198.18.76.1/30 dev $0; ip link set $0 up";

/// The two cards, and who listens at the other one.
#[derive(Debug)]
pub(super) struct Network {
    /// A process in the namespace, which ends with its standard input.
    holder: Child,
    near: String,
    listener: TcpListener,
}

/// Role of one thread of a pair, with its socket.
#[derive(Debug)]
pub(super) enum Mover {
    Sends(TcpStream),
    Receives(TcpStream),
}

fn failed(error: io::Error) -> Error {
    let what = "making a network of two virtual cards (needs root, and the programs ip and unshare)";
    Error::system(what, error)
}

impl Network {
    pub(super) fn make() -> Result<Self, Error> {
        let own = std::process::id().to_string();
        let near = format!("hnb{own}");
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-ec", MAKE_FAR, &near, &own])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        // A line tells that it is there; where nothing can be read it has failed, and has said why.
        let told = holder.stdout.as_mut().expect("it is piped").read_exact(&mut [0]);
        let listener = told.and_then(|()| {
            let done = Command::new("sh").args(["-ec", MAKE_NEAR, &near]).status()?;
            if !done.success() {
                return Err(io::Error::other(done.to_string()));
            }
            let namespace = File::open(format!("/proc/{}/ns/net", holder.id()))?;
            // A thread is in a namespace, and this one is not to stay there.
            let listen = move || {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                TcpListener::bind((FAR, 0))
            };
            thread::spawn(listen)
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        match listener {
            Ok(listener) => Ok(Self { holder, near, listener }),
            Err(error) => {
                end(&mut holder);
                Err(failed(error))
            }
        }
    }

    /// Both of a pair.
    pub(super) fn pair(&self) -> Result<[Mover; 2], Error> {
        let address = self.listener.local_addr().map_err(failed)?;
        let receives = TcpStream::connect(address).map_err(failed)?;
        let (sends, _) = self.listener.accept().map_err(failed)?;
        Ok([Mover::Sends(sends), Mover::Receives(receives)])
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The kernel takes namespaces down behind everyone's back, and the next network has the same name.
        let _ = Command::new("ip").args(["link", "delete", &self.near]).status();
        end(&mut self.holder);
    }
}

fn end(holder: &mut Child) {
    drop(holder.stdin.take());
    // There is nothing to be done about one that has gone.
    let _ = holder.wait();
}

impl Mover {
    /// Moves bytes until the end: whoever receives ends when the sender has. Counts messages that were received.
    pub(super) fn run(self, end: &AtomicBool, messages: &AtomicU64) -> io::Result<()> {
        let mut message = vec![0; MESSAGE_BYTES];
        match self {
            Self::Sends(mut stream) => {
                // Relaxed: nothing else is passed on with these.
                while !end.load(Ordering::Relaxed) {
                    stream.write_all(&message)?;
                    thread::sleep(PAUSE);
                }
                Ok(())
            }
            Self::Receives(mut stream) => loop {
                match stream.read_exact(&mut message) {
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
                    received => received?,
                }
                messages.fetch_add(1, Ordering::Relaxed);
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn card_is_there() -> bool {
        fs::exists(format!("/sys/class/net/hnb{}", std::process::id())).expect("sysfs")
    }

    #[test]
    fn receivers_get_all_sent_bytes_and_leave_nothing_behind() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: only root makes virtual cards");
            return;
        }
        let network = Network::make().expect("two cards");
        assert!(card_is_there());
        let pair = network.pair().expect("a pair");
        let (end, messages) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let both = pair.map(|mover| scope.spawn(|| mover.run(&end, &messages)));
            while messages.load(Ordering::Relaxed) < 3 && !both.iter().any(thread::ScopedJoinHandle::is_finished) {
                thread::sleep(PAUSE);
            }
            end.store(true, Ordering::Relaxed);
            for thread in both {
                thread.join().expect("the thread does not panic").expect("no error");
            }
        });
        assert!(messages.into_inner() >= 3);
        drop(network);
        assert!(!card_is_there());
    }
}
