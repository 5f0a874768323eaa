//! From a request to its answer, without the device: what a thread does between getting the one and sending the other.
//!
//! A panic in a request stays in it: it is answered with EIO, logged and counted, and the thread goes on. (The engine's
//! locks do not poison and its passes are released when unwinding.)

use crate::call::{Call, Errno, Later, Origin, Service};
use crate::host::Host;
use crate::statistics::Counters;
use crate::wire::{Field, InHeader, Incoming, Malformed, Opcode, OutHeader, Reply, Request};
use homenode_engine::cache::Fetch;
use homenode_engine::{Clock, Memory};
use homenode_shared::Slot;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// A thread's way to the filesystem.
#[derive(Debug)]
pub(crate) struct Responder<M: Memory, C: Clock, H> {
    pub(crate) service: Arc<Service<M, C, H>>,
    pub(crate) slot: Slot,
    pub(crate) counters: Arc<Counters>,
    /// Reads that the last request asks the thread of a ring to carry out.
    pub(crate) fetches: RefCell<Vec<Fetch>>,
}

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is answered, with what is in the reply.
    Due(OutHeader),
    /// Nobody waits for one.
    None,
    /// It is to be carried out again, for that reason.
    Later(Later),
}

impl<M: Memory, C: Clock, H: Host> Responder<M, C, H> {
    pub(crate) fn new(service: &Arc<Service<M, C, H>>, slot: Slot) -> Self {
        Self {
            service: Arc::clone(service),
            slot,
            counters: Arc::default(),
            fetches: RefCell::default(),
        }
    }

    /// Carries out the request in `bytes`, read from the device, and writes the payload of its answer into `message`, behind the place of
    /// its header. A thread `aside` tells how far the request came, 0 at first, and has one step of it carried out.
    pub(crate) fn answer(&self, bytes: &[u8], aside: Option<u64>, message: &mut [u8]) -> Answer {
        let payload = message.get_mut(OutHeader::BYTES..).unwrap_or_default();
        let origin = Origin::Device {
            is_aside: aside.is_some(),
            done: aside.unwrap_or(0),
        };
        self.carry_out(Incoming::parse(bytes), origin, &mut Reply::new(payload))
    }

    /// [`Self::answer`] by a thread that may wait, to the end.
    pub(crate) fn answer_wholly(&self, bytes: &[u8], message: &mut [u8]) -> Answer {
        let mut done = 0;
        loop {
            match self.answer(bytes, Some(done), message) {
                Answer::Later(Later::Step(so_far)) => done = so_far,
                answer => return answer,
            }
        }
    }

    /// Makes durable what the requests that have these answers settled, or changes the answers.
    pub(crate) fn force<'a>(&self, answers: impl Iterator<Item = &'a mut Answer>) {
        // Unwind safety: everything is behind the engine's locks.
        let forced = catch_unwind(AssertUnwindSafe(|| self.service.fs.end_sync(&self.slot)));
        let Errno(errno) = match forced {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.into(),
            Err(panic) => {
                self.report_panic(&InHeader::default(), panic.as_ref());
                Errno(libc::EIO)
            }
        };
        for answer in answers {
            if let Answer::Due(header) = answer
                && header.error == 0
            {
                *answer = self.due(header.unique, errno, 0);
            }
        }
    }

    /// Carries out a request and writes the payload of its answer to `reply`.
    pub(crate) fn carry_out(
        &self,
        incoming: Result<Incoming<'_>, Malformed>,
        origin: Origin,
        reply: &mut Reply<'_>,
    ) -> Answer {
        let Incoming { header, request } = match incoming {
            Ok(incoming) => incoming,
            Err(malformed) => return self.refuse(malformed),
        };
        if !matches!(
            origin,
            Origin::Ring { is_new: false, .. } | Origin::Device { is_aside: true, .. }
        ) {
            self.counters.count_request(header.opcode);
        }
        let call = Call {
            service: &self.service,
            slot: &self.slot,
            counters: &self.counters,
            header: &header,
            origin,
            later: Cell::new(None),
            fetches: &self.fetches,
            waits: Cell::new(false),
        };
        let is_silent = matches!(request, Request::Forget(_) | Request::BatchForget(_));
        // Unwind safety: the reply counts as empty then, and everything else is behind the engine's locks.
        match catch_unwind(AssertUnwindSafe(|| call.carry_out(request, reply))) {
            Err(panic) => {
                self.report_panic(&header, panic.as_ref());
                if is_silent {
                    Answer::None
                } else {
                    self.due(header.unique, libc::EIO, 0)
                }
            }
            Ok(Err(_)) if let Some(later) = call.later.get() => Answer::Later(later),
            Ok(_) if is_silent => Answer::None,
            Ok(Ok(())) => self.due(header.unique, 0, reply.used()),
            Ok(Err(Errno(errno))) => self.due(header.unique, errno, 0),
        }
    }

    fn due(&self, unique: u64, errno: i32, payload_bytes: usize) -> Answer {
        if errno != 0 {
            self.counters.count_error(errno);
        }
        let len = u32::try_from(OutHeader::BYTES + payload_bytes).expect("a message is little more than 1 MiB");
        Answer::Due(OutHeader {
            len,
            error: -errno,
            unique,
        })
    }

    /// Answers what is no request, as far as it can be answered. The kernel does not send such things.
    fn refuse(&self, malformed: Malformed) -> Answer {
        tracing::error!(%malformed, "malformed request");
        self.counters.count_request(u32::MAX);
        malformed
            .unique()
            .map_or(Answer::None, |unique| self.due(unique, libc::EIO, 0))
    }

    fn report_panic(&self, header: &InHeader, panic: &(dyn Any + Send)) {
        self.counters.count_panic();
        let text = panic.downcast_ref::<&str>().copied();
        let message = text
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("not a text");
        tracing::error!(
            opcode = Opcode::from_number(header.opcode).map_or("unknown", Opcode::name),
            nodeid = header.nodeid,
            message,
            "a request panicked and was answered with EIO"
        );
    }
}
