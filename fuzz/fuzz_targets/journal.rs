//! Any bytes as the undo journal of core affinity: taken or refused, never a panic. What is taken is told alike every time,
//! and, of a machine that has none of it any more, taken back.
#![no_main]

use homenode_linux::affinity::act::{Actor, Error, Kernel, Mask, Process, Store};
use homenode_policy::CpuId;
use homenode_policy::affinity::{Target, ThreadId};
use libfuzzer_sys::fuzz_target;
use std::io;
use std::path::Path;

const BOOT: &str = "boot";
const NAMESPACES: &str = "namespaces";

fuzz_target!(|bytes: &[u8]| {
    // As it is, and with the checksums corrected, so that the fuzzer gets past them.
    check(bytes);
    let header = format!("homenode-affinity 1 {BOOT} {NAMESPACES}");
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let corrected: Vec<Vec<u8>> = [header.as_bytes()]
        .into_iter()
        .chain(lines)
        .map(with_checksum)
        .collect();
    let mut text = corrected.concat();
    // The checksum of the header stands at its end.
    let first = format!("{header} {:08x}\n", crc32c::crc32c(header.as_bytes()));
    text.splice(..corrected[0].len(), first.into_bytes());
    check(&text);
});

fn with_checksum(line: &[u8]) -> Vec<u8> {
    let record = line.strip_suffix(b"\n").unwrap_or(line);
    [format!("{:08x} ", crc32c::crc32c(record)).as_bytes(), line].concat()
}

fn check(bytes: &[u8]) {
    let open = || Actor::with_store(Nothing, Memory(Some(bytes.to_vec())));
    let Ok(mut actor) = open() else { return };
    let again = open().expect("the journal was read before");
    assert_eq!(actor.changed(), again.changed());
    assert!(actor.previous().is_ok());
    let standings = actor.verify().expect("what is not there has vanished");
    assert_eq!(standings.len(), actor.changed().len());
    let reverted = actor.revert().expect("there is nothing to fail");
    assert!(reverted.is_complete() && actor.is_clean());
}

/// A journal in memory.
struct Memory(Option<Vec<u8>>);

impl Store for Memory {
    fn path(&self) -> &Path {
        Path::new("journal")
    }

    fn load(&mut self) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.0.clone())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.0.get_or_insert_default().extend(bytes);
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.0 = Some(bytes.to_vec());
        Ok(())
    }

    fn remove(&mut self) -> Result<(), Error> {
        self.0 = None;
        Ok(())
    }
}

/// A machine of four CPUs without interrupts, cards and threads.
struct Nothing;

fn vanished<T>() -> io::Result<T> {
    Err(io::Error::from_raw_os_error(2))
}

impl Kernel for Nothing {
    fn boot(&self) -> io::Result<String> {
        Ok(BOOT.to_owned())
    }

    fn namespaces(&self) -> io::Result<String> {
        Ok(NAMESPACES.to_owned())
    }

    fn now(&self) -> io::Result<u64> {
        Ok(1_000_000)
    }

    fn online(&self) -> io::Result<Vec<CpuId>> {
        Ok((0..4).map(CpuId).collect())
    }

    fn possible(&self) -> io::Result<Vec<CpuId>> {
        self.online()
    }

    fn identity(&self, _: &Target) -> io::Result<Option<String>> {
        Ok(None)
    }

    fn read(&self, _: &Target) -> io::Result<Mask> {
        vanished()
    }

    fn write(&self, _: &Target, _: &Mask) -> io::Result<()> {
        vanished()
    }

    fn effective(&self, _: u32) -> io::Result<Vec<CpuId>> {
        vanished()
    }

    fn hint(&self, _: u32) -> io::Result<Vec<CpuId>> {
        Ok(Vec::new())
    }

    fn cpuset(&self, _: ThreadId) -> io::Result<Option<Vec<CpuId>>> {
        vanished()
    }

    fn process(&self, _: u32) -> io::Result<Process> {
        vanished()
    }

    fn threads(&self) -> io::Result<Vec<ThreadId>> {
        Ok(Vec::new())
    }
}
