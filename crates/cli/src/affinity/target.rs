//! Target that a person asks about, and its matches in a snapshot.

use homenode_policy::affinity::{Interrupt, Queue, QueueKind, Snapshot, Thread};
use std::str::FromStr;

/// Target as the person wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// A thread, or all threads of a process.
    Thread(u32),
    Interrupt(u32),
    /// A queue by device, kind and number.
    Queue(String, QueueKind, u32),
    /// A device, a process or a thread by name.
    Name(String),
}

/// Parts of a snapshot that match a target; empty if nothing was seen of the target.
#[derive(Debug, Default)]
pub(super) struct Found<'a> {
    pub(super) threads: Vec<&'a Thread>,
    pub(super) interrupts: Vec<&'a Interrupt>,
    pub(super) queues: Vec<&'a Queue>,
}

const EXPECTED: &str = "write 4711 or thread:4711 (a thread or process), irq:38 (an interrupt), eth0/tx-0, eth0/rx-0 or \
                        nvme0n1/0 (a queue), or a name (of a device, a process or a thread)";

impl FromStr for Asked {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            text.parse::<u32>()
                .map_err(|_| format!("{text:?} is no number: {EXPECTED}"))
        };
        if let Some(thread) = text.strip_prefix("thread:").or_else(|| text.strip_prefix("process:")) {
            return Ok(Self::Thread(number(thread)?));
        }
        if let Some(interrupt) = text.strip_prefix("irq:").or_else(|| text.strip_prefix("interrupt:")) {
            return Ok(Self::Interrupt(number(interrupt)?));
        }
        let name = text.strip_prefix("device:").unwrap_or(text);
        let queue = name.strip_prefix("queue:");
        match queue.or(name.contains('/').then_some(name)) {
            Some(queue) => parse_queue(queue).ok_or_else(|| format!("{queue:?} names no queue: {EXPECTED}")),
            None if name.is_empty() => Err(EXPECTED.to_owned()),
            None => Ok(name.parse().map_or_else(|_| Self::Name(name.to_owned()), Self::Thread)),
        }
    }
}

/// `eth0/tx-0` as sysfs has it, `eth0/tx/0`, and `nvme0n1/0` or `nvme0n1/mq/0`.
fn parse_queue(text: &str) -> Option<Asked> {
    let (device, queue) = text.split_once('/')?;
    let (kind, index) = match queue.split_once(['/', '-']) {
        Some(("tx", index)) => (QueueKind::Transmit, index),
        Some(("rx", index)) => (QueueKind::Receive, index),
        Some(("mq", index)) => (QueueKind::Block, index),
        None => (QueueKind::Block, queue),
        Some(_) => return None,
    };
    let index = index.parse().ok()?;
    (!device.is_empty()).then(|| Asked::Queue(device.to_owned(), kind, index))
}

impl Asked {
    pub(super) fn find<'a>(&self, snapshot: &'a Snapshot) -> Found<'a> {
        let threads = snapshot.threads.iter();
        let interrupts = snapshot.interrupts.iter();
        let queues = snapshot.queues.iter();
        match self {
            Self::Thread(id) => Found {
                threads: threads
                    .filter(|thread| thread.id.thread == *id || thread.id.process == *id)
                    .collect(),
                ..Found::default()
            },
            Self::Interrupt(number) => Found {
                interrupts: interrupts.filter(|interrupt| interrupt.number == *number).collect(),
                ..Found::default()
            },
            Self::Queue(device, kind, index) => Found {
                queues: queues
                    .filter(|queue| (&queue.device, queue.kind, queue.index) == (device, *kind, *index))
                    .collect(),
                ..Found::default()
            },
            Self::Name(name) => Found {
                threads: threads
                    .filter(|thread| thread.name == *name || thread.process_name == *name)
                    .collect(),
                interrupts: interrupts
                    .filter(|interrupt| interrupt.device.as_ref() == Some(name) || interrupt.name == *name)
                    .collect(),
                queues: queues.filter(|queue| queue.device == *name).collect(),
            },
        }
    }
}

impl Found<'_> {
    pub(super) fn is_nothing(&self) -> bool {
        self.threads.is_empty() && self.interrupts.is_empty() && self.queues.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_parse_in_all_usual_spellings() {
        let queue = |kind, index| Asked::Queue("eth0".to_owned(), kind, index);
        let table = [
            ("4711", Asked::Thread(4711)),
            ("thread:4711", Asked::Thread(4711)),
            ("process:4711", Asked::Thread(4711)),
            ("irq:38", Asked::Interrupt(38)),
            ("interrupt:38", Asked::Interrupt(38)),
            ("eth0/tx-0", queue(QueueKind::Transmit, 0)),
            ("queue:eth0/rx/12", queue(QueueKind::Receive, 12)),
            ("eth0/3", queue(QueueKind::Block, 3)),
            ("eth0/mq/3", queue(QueueKind::Block, 3)),
            ("fio", Asked::Name("fio".to_owned())),
            ("device:eth0", Asked::Name("eth0".to_owned())),
        ];
        for (text, asked) in table {
            assert_eq!(text.parse(), Ok(asked), "{text}");
        }
        let wrong = [
            "",
            "thread:x",
            "irq:",
            "irq:-1",
            "eth0/",
            "/tx-0",
            "eth0/tx-",
            "eth0/zx-1",
            "queue:eth0",
            "a/b/c",
        ];
        for text in wrong {
            let message = text.parse::<Asked>().unwrap_err();
            assert!(
                message.contains("irq:38") && message.contains("eth0/tx-0"),
                "{text}: {message}"
            );
        }
    }
}
