//! From the bytes of a request to the bytes of its answer, without the device: what a thread does between read and write.
//!
//! A panic in a request stays in it: it is answered with EIO, logged and counted, and the thread goes on. (The engine's
//! locks do not poison and its passes are released when unwinding.)

use crate::call::{Call, Errno, Outcome, Service};
use crate::host::Host;
use crate::statistics::Counters;
use crate::wire::{Field, InHeader, Incoming, Malformed, Opcode, OutHeader, Reply, Request};
use homenode_engine::{Clock, Memory};
use homenode_shared::Slot;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// One thread's way to the filesystem.
#[derive(Debug)]
pub(crate) struct Responder<M: Memory, C: Clock, H> {
    pub(crate) service: Arc<Service<M, C, H>>,
    pub(crate) slot: Slot,
    pub(crate) counters: Arc<Counters>,
}

impl<M: Memory, C: Clock, H: Host> Responder<M, C, H> {
    /// Carries out the request in `bytes` and writes the whole message into `message`; `None` when no answer is due.
    pub(crate) fn answer(&self, bytes: &[u8], message: &mut [u8]) -> Option<usize> {
        let incoming = match Incoming::parse(bytes) {
            Ok(incoming) => incoming,
            Err(malformed) => return self.refuse(malformed, message),
        };
        let header = &incoming.header;
        self.counters.count_request(header.opcode);
        let (_, payload) = message.split_at_mut_checked(OutHeader::BYTES)?;
        let mut reply = Reply::new(payload);
        // Unwind safety: the reply is dropped with the payload length 0, and everything else is behind the engine's locks.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            self.call(header).carry_out(incoming.request, &mut reply)
        }));
        let (error, payload_bytes) = match outcome {
            Ok(Ok(Outcome::Answer)) => (0, reply.used()),
            Ok(Ok(Outcome::Silence)) => return None,
            Ok(Err(Errno(errno))) => (errno, 0),
            Err(panic) => {
                self.report_panic(header, panic.as_ref());
                if matches!(incoming.request, Request::Forget(_) | Request::BatchForget(_)) {
                    return None;
                }
                (libc::EIO, 0)
            }
        };
        self.finish(header.unique, error, payload_bytes, message)
    }

    fn call<'a>(&'a self, header: &'a InHeader) -> Call<'a, M, C, H> {
        Call {
            service: &self.service,
            slot: &self.slot,
            counters: &self.counters,
            header,
        }
    }

    /// Puts the header in front of the payload; gives the length of the whole.
    fn finish(&self, unique: u64, errno: i32, payload_bytes: usize, message: &mut [u8]) -> Option<usize> {
        if errno != 0 {
            self.counters.count_error(errno);
        }
        let bytes = OutHeader::BYTES + payload_bytes;
        let len = u32::try_from(bytes).expect("a message is little more than 1 MiB");
        let mut to = message;
        OutHeader {
            len,
            error: -errno,
            unique,
        }
        .put(&mut to)?;
        Some(bytes)
    }

    /// Answers what is no request, as far as it can be answered. The kernel does not send such things.
    fn refuse(&self, malformed: Malformed, message: &mut [u8]) -> Option<usize> {
        tracing::error!(%malformed, "malformed request");
        self.counters.count_request(u32::MAX);
        self.finish(malformed.unique()?, libc::EIO, 0, message)
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
