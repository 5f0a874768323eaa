//! A connection that is kept between requests, for viewers that ask a server again and again.
//!
//! Invariant: at most one request is under way. A server that was stopped finds one request when it goes on, so its next answers are new.

use super::client::{ConnectError, Connection, QUICK_TIMEOUT, RequestError};
use super::protocol::{Outcome, Request};
use crate::mountinfo::Device;
use std::io;
use std::time::Duration;

/// A connection to the server of a device, opened by the first request. All requests of one `Kept` are of one kind.
#[derive(Debug)]
pub(crate) struct Kept {
    device: Device,
    /// Longest time to wait for the server, both to connect and to answer.
    quick: Duration,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    connection: Connection,
    /// A request was sent, and its answer has not come yet.
    is_owed: bool,
    /// The part of the answer's line that has come.
    line: Vec<u8>,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// Nobody listens.
    Gone,
    /// Connecting failed.
    Unreachable(io::Error),
    /// The server refused, or broke the conversation.
    Silent(String),
    /// The server has not answered yet.
    Late(String),
}

impl Kept {
    pub(crate) fn new(device: Device) -> Self {
        Self::with(device, QUICK_TIMEOUT)
    }

    /// Waits at most `quick` for the server, both to connect and to answer.
    pub(crate) fn with(device: Device, quick: Duration) -> Self {
        Self {
            device,
            quick,
            open: None,
        }
    }

    /// The server's user; `None` while there is no connection.
    pub(crate) fn user(&self) -> Option<u32> {
        self.open.as_ref()?.connection.user().ok()
    }

    /// Sends `request` and waits for the answer. While the answer to the request before is owed, sends nothing and hardly waits.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<Outcome, Unanswered> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => Open {
                connection: Connection::open_with(self.device, self.quick)?,
                is_owed: false,
                line: Vec::new(),
            },
        };
        // Whoever owes an answer has had his time: it is there by now and is read, or he is not waited for.
        let (sent, wait) = if open.is_owed {
            (Ok(()), self.quick / 10)
        } else {
            (open.connection.send(request), self.quick)
        };
        let answer = sent.and_then(|()| open.connection.receive(request, wait, &mut open.line, &mut |_, _| {}));
        open.is_owed = matches!(answer, Err(RequestError::Late(_)));
        // A server that refuses a viewer closes the connection, perhaps a moment later.
        let ends = matches!(answer, Err(RequestError::Broken(_) | RequestError::Refused(_)));
        let is_broken = ends || open.connection.has_ended();
        if !is_broken {
            self.open = Some(open);
        }
        match answer {
            Ok(outcome) => Ok(outcome),
            Err(RequestError::Refused(refusal)) => Err(Unanswered::Silent(refusal.message)),
            // A server that runs closes connections, too.
            Err(_)
                if is_broken && matches!(Connection::open_with(self.device, self.quick), Err(ConnectError::Dead)) =>
            {
                Err(Unanswered::Gone)
            }
            Err(RequestError::Broken(failure)) => Err(Unanswered::Silent(failure.to_string())),
            Err(RequestError::Late(failure)) => Err(Unanswered::Late(failure.to_string())),
        }
    }
}

impl From<ConnectError> for Unanswered {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Dead => Self::Gone,
            ConnectError::Other(error) => Self::Unreachable(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::protocol::{Refusal, Reply};
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;
    use std::thread;

    const QUICK: Duration = Duration::from_millis(100);

    #[test]
    fn a_server_that_was_stopped_finds_one_request_and_the_next_answer_is_new() {
        let device = Device { major: 4000, minor: 77 };
        let (client, server) = UnixStream::pair().unwrap();
        let open = Open {
            connection: Connection::over(device, client, QUICK),
            is_owed: false,
            line: Vec::new(),
        };
        let mut kept = Kept {
            device,
            quick: QUICK,
            open: Some(open),
        };
        let (go, goes) = mpsc::channel::<()>();
        let served = thread::spawn(move || {
            let mut lines = BufReader::new(&server).lines();
            let mut answers = (1..).map(|bytes| {
                let mut line = serde_json::to_vec(&Reply::Done(Outcome::Moved { bytes })).unwrap();
                line.push(b'\n');
                line
            });
            // The first answer comes in two parts, each of them late.
            lines.next().unwrap().unwrap();
            let first = answers.next().unwrap();
            let (part, rest) = first.split_at(9);
            (&server).write_all(part).unwrap();
            goes.recv().unwrap();
            (&server).write_all(rest).unwrap();
            let mut found = 1;
            for (line, answer) in lines.zip(answers) {
                line.unwrap();
                found += 1;
                (&server).write_all(&answer).unwrap();
            }
            found
        });
        let mut ask = || kept.ask(&Request::Live { since_ms: 0 });
        let mut late = 0;
        let first = loop {
            match ask() {
                Ok(outcome) => break outcome,
                Err(Unanswered::Late(why)) => assert!(why.contains("has not answered for 0.1 s"), "{why}"),
                Err(other) => panic!("{other:?}"),
            }
            late += 1;
            if late == 2 {
                go.send(()).unwrap();
            }
        };
        assert_eq!(first, Outcome::Moved { bytes: 1 });
        assert_eq!(
            ask().unwrap(),
            Outcome::Moved { bytes: 2 },
            "it is the answer to this request"
        );
        assert_eq!(ask().unwrap(), Outcome::Moved { bytes: 3 });
        drop(kept);
        assert_eq!(served.join().unwrap(), 3, "requests that the server found");
    }

    #[test]
    fn a_connection_that_was_refused_is_not_used_again() {
        let device = Device { major: 4000, minor: 76 };
        let (client, server) = UnixStream::pair().unwrap();
        let mut kept = Kept {
            device,
            quick: QUICK,
            open: Some(Open {
                connection: Connection::over(device, client, QUICK),
                is_owed: false,
                line: Vec::new(),
            }),
        };
        let mut line = serde_json::to_vec(&Reply::Failed(Refusal::new("eight look"))).unwrap();
        line.push(b'\n');
        (&server).write_all(&line).unwrap();
        let told = kept.ask(&Request::Status);
        assert!(
            matches!(&told, Err(Unanswered::Silent(why)) if why == "eight look"),
            "{told:?}"
        );
        assert!(kept.open.is_none());
    }

    #[test]
    fn a_server_that_has_ended_is_gone() {
        let mut kept = Kept::new(Device { major: 4000, minor: 78 });
        assert!(matches!(kept.ask(&Request::Status), Err(Unanswered::Gone)));
    }
}
