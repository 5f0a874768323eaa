//! Mounts of durable pools on this machine, told apart by the pool's UUID.
//!
//! The mount table has a pool's name only, which may be another one by now: each server is asked what it serves. The name counts where nobody answers.

use crate::control::client::{ConnectError, Connection};
use crate::control::protocol::StatusReport;
use crate::directory::is_dead;
use crate::mountinfo::{MountEntry, locate, mounts};
use std::io;
use std::thread;

/// A mount of some pool.
#[derive(Debug)]
pub(crate) struct Mounted {
    pub(crate) mount: MountEntry,
    pub(crate) server: Server,
}

/// State of a mount's server.
#[derive(Debug)]
pub(crate) enum Server {
    Answers(Box<StatusReport>),
    /// It was killed.
    Dead,
    /// It is stopped, say, or not ours to ask.
    Silent,
}

impl Mounted {
    /// Whether it is, or was, the mount of the pool of that name and UUID.
    pub(crate) fn is_of(&self, name: &str, uuid: &str) -> bool {
        match &self.server {
            Server::Answers(report) => report.durable.as_ref().is_some_and(|durable| durable.uuid == uuid),
            Server::Dead | Server::Silent => self.mount.source == *name,
        }
    }
}

/// All mounts of pools.
///
/// # Errors
/// When the mount table cannot be read.
pub(crate) fn all() -> io::Result<Vec<Mounted>> {
    let mounts = mounts()?.into_iter().filter(MountEntry::is_homenode);
    // All at once: one that is stopped does not hold up the others.
    Ok(thread::scope(|scope| {
        let asked: Vec<_> = mounts.map(|mount| scope.spawn(|| ask(mount))).collect();
        let answers = asked.into_iter().map(|one| one.join().expect("asking does not panic"));
        answers.collect()
    }))
}

fn ask(mount: MountEntry) -> Mounted {
    let server = match Connection::open(mount.device) {
        Ok(mut connection) => match connection.status() {
            Ok(report) => Server::Answers(Box::new(report)),
            Err(_) => Server::Silent,
        },
        // What another mount covers cannot be looked at.
        Err(ConnectError::Dead)
            if locate(&mount.mount_point).is_ok_and(|top| top.mount.id == mount.id && is_dead(&top)) =>
        {
            Server::Dead
        }
        Err(_) => Server::Silent,
    };
    Mounted { mount, server }
}
