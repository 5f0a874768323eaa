//! Any text as the trace of a mount: taken or refused, never a panic. What is taken is placed, and no byte is counted twice.
#![no_main]

use homenode_policy::AccessKind;
use homenode_sim::shapes::{Shape, machine};
use homenode_sim::trace::{HEADER, Trace};
use homenode_sim::{Constants, Contestant, Machine};
use libfuzzer_sys::fuzz_target;

/// Larger ones take long, and no other way.
const BYTES_MAX: u64 = 1 << 24;

fuzz_target!(|text: &str| {
    // As it is, and with a header, so that the fuzzer gets past that.
    check(text);
    check(&format!("{HEADER}\nnode 0 1048576\nnode 1 65536\n{text}"));
});

fn check(text: &str) {
    let Ok(trace) = Trace::parse(text) else { return };
    let moved = || trace.accesses.iter().filter(|access| access.kind != AccessKind::Free);
    let all = moved().map(|access| u128::from(access.bytes)).sum::<u128>();
    let end = moved().map(|access| access.offset + access.bytes).max();
    if all > u128::from(BYTES_MAX) || end > Some(BYTES_MAX) {
        return;
    }
    let topology = machine(2, 1, 1 << 30, Shape::Full, Vec::new());
    let machine = Machine::new(&topology, &Constants::SERVER.draw(0)).expect("it has CPUs and memory");
    for contestant in [Contestant::Tmpfs, Contestant::Library] {
        let Ok(done) = trace.run(contestant, &machine) else { continue };
        assert!(done.local_bytes <= done.bytes);
        assert_eq!(u128::from(done.bytes + done.unknown_bytes + done.refused_bytes), all);
    }
}
