//! How a mounted filesystem behaves, situation by situation, errno by errno, as the man pages have it.
//!
//! `HOMENODE_TEST_DIR=/some/tmpfs cargo test -p homenode-cli --test posix` runs the suite on a tmpfs, which proves the tests.
//! Every test works in a directory of its own, so all run in parallel; a test that fills a filesystem mounts one of its own.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers, too")]

mod access;
mod acl;
mod actor;
mod allocate;
mod append;
mod asynchronous;
mod directory;
mod full;
mod limits;
mod link;
mod listing;
mod lock;
mod map;
mod mount;
mod observe;
mod open;
mod owner;
mod rename;
mod space;
mod special;
mod stage;
mod sticky;
mod symlink;
mod sync;
mod time;
mod transfer;
mod truncate;
mod unlink;
mod xattr;
