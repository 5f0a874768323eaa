//! Every method against a plain slice, at every alignment and around every threshold, and under a race.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// Around lines, pages and thresholds.
const SIZES: [usize; 27] = [
    64, 65, 100, 127, 128, 129, 191, 192, 255, 1000, 2047, 2048, 2049, 4095, 4096, 4097, 4159, 4160, 8191, 8192, 8300,
    16_384, 32_767, 32_768, 65_535, 65_536, 70_001,
];
const GUARD_BYTES: usize = 128;
const GUARD: u8 = 0xa5;

/// Whether all bytes are this one, compared by the standard library: a loop here takes long without optimization.
fn are_all(bytes: &[u8], byte: u8) -> bool {
    *bytes == vec![byte; bytes.len()]
}

fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|n| (n * 7 + n / 256 + 1).to_le_bytes()[0]).collect()
}

/// A buffer whose byte at `offset` is as far behind a page's start.
fn page_aligned(bytes: usize) -> (Vec<u8>, usize) {
    let buffer = vec![GUARD; bytes + 3 * 4096];
    let start = buffer.as_ptr().align_offset(4096);
    (buffer, start)
}

fn check_copy(name: &str, copy: Copying, bytes: usize, to_offset: usize, from_offset: usize) {
    let (mut from, from_page) = page_aligned(bytes);
    let (mut to, to_page) = page_aligned(bytes);
    let (from_start, to_start) = (from_page + from_offset, to_page + to_offset);
    let written = pattern(bytes);
    from[from_start..from_start + bytes].copy_from_slice(&written);
    // SAFETY: both ranges lie in their buffers.
    unsafe {
        copy(
            to.as_mut_ptr().wrapping_add(to_start),
            from.as_ptr().wrapping_add(from_start),
            bytes,
        )
    };
    let case = format!("{name}: {bytes} bytes from {from_offset} to {to_offset}");
    assert!(to[to_start..to_start + bytes] == written, "{case}: wrong bytes");
    assert!(are_all(&to[..to_start], GUARD), "{case}: wrote before");
    assert!(are_all(&to[to_start + bytes..], GUARD), "{case}: wrote behind");
}

fn check_zero(name: &str, zero: Zeroing, bytes: usize, offset: usize) {
    let (mut at, page) = page_aligned(bytes);
    let start = page + offset;
    // SAFETY: the range lies in the buffer.
    unsafe { zero(at.as_mut_ptr().wrapping_add(start), bytes) };
    let case = format!("{name}: {bytes} zeros at {offset}");
    assert!(are_all(&at[start..start + bytes], 0), "{case}: left bytes");
    assert!(are_all(&at[..start], GUARD), "{case}: wrote before");
    assert!(are_all(&at[start + bytes..], GUARD), "{case}: wrote behind");
}

#[test]
fn every_copy_method_moves_exactly_the_range() {
    for Method {
        name,
        load,
        store,
        zero,
    } in methods()
    {
        for bytes in SIZES {
            for (to, from) in [
                (0, 0),
                (1, 0),
                (0, 1),
                (63, 32),
                (64, 4095),
                (4090, 13),
                (GUARD_BYTES, 100),
            ] {
                check_copy(name, load, bytes, to, from);
                check_copy(name, store, bytes, to, from);
                check_zero(name, zero, bytes, to);
            }
        }
    }
}

#[test]
fn small_sizes_move_at_every_alignment() {
    for bytes in 0..200 {
        for offset in 0..70 {
            check_copy("load", load, bytes, 0, offset);
            check_copy("load", load, bytes, offset, 3);
            check_copy("store", store, bytes, offset, 0);
            check_copy("within", within, bytes, offset, 7);
            check_zero("zero", zero, bytes, offset);
        }
    }
}

#[test]
fn every_length_around_a_page_moves() {
    for bytes in 4000..4400 {
        for Method {
            name,
            load,
            store,
            zero,
        } in methods()
        {
            check_copy(name, load, bytes, bytes % 67, 5);
            check_copy(name, store, bytes, 9, bytes % 71);
            check_zero(name, zero, bytes, bytes % 61);
        }
    }
}

/// Shared bytes, as the pool's are: only raw pointers reach them.
struct Shared(*mut u8);
// SAFETY: the pointer is only given to the functions under test, which allow races.
unsafe impl Sync for Shared {}

#[test]
fn racing_copies_return_a_mix_of_written_words() {
    const BYTES: usize = 5000;
    let mut bytes = vec![1_u8; BYTES];
    let shared = Shared(bytes.as_mut_ptr());
    for method in methods() {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for stamp in [1_u8, 2] {
                let (shared, done) = (&shared, &done);
                scope.spawn(move || {
                    let from = vec![stamp; BYTES];
                    while !done.load(Ordering::Relaxed) {
                        // SAFETY: the shared bytes outlive the threads.
                        unsafe { (method.store)(shared.0, from.as_ptr(), BYTES) };
                    }
                });
            }
            let mut to = vec![0; BYTES];
            for _ in 0..2000 {
                // SAFETY: as above; `to` is this thread's.
                unsafe { (method.load)(to.as_mut_ptr(), shared.0, BYTES) };
                assert!(
                    to.iter().all(|byte| [1, 2].contains(byte)),
                    "{}: a byte nobody wrote",
                    method.name
                );
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn stores_are_visible_before_a_later_publication() {
    const BYTES: usize = 32 << 10;
    for method in methods() {
        let mut bytes = vec![0_u8; BYTES];
        let shared = Shared(bytes.as_mut_ptr());
        let published = std::sync::atomic::AtomicU8::new(0);
        std::thread::scope(|scope| {
            let (shared, published) = (&shared, &published);
            scope.spawn(move || {
                for round in 1..=250_u8 {
                    let from = vec![round; BYTES];
                    // SAFETY: the shared bytes outlive the threads.
                    unsafe { (method.store)(shared.0, from.as_ptr(), BYTES) };
                    published.store(round, Ordering::Release);
                }
            });
            let mut to = vec![0; BYTES];
            let mut seen = 0;
            while seen < 250 {
                seen = published.load(Ordering::Acquire);
                // SAFETY: as above; `to` is this thread's.
                unsafe { (method.load)(to.as_mut_ptr(), shared.0, BYTES) };
                assert!(
                    to.iter().all(|byte| *byte >= seen),
                    "{}: older than published",
                    method.name
                );
            }
        });
    }
}

/// It is given addresses that nobody checked: of removed members, or of nothing.
#[test]
fn any_address_can_be_announced() {
    for at in [0, 1, 63, usize::MAX / 2, usize::MAX - 8192] {
        for bytes in [0, 1, 256, 4096] {
            announce(std::ptr::without_provenance(at), bytes, false);
            announce(std::ptr::without_provenance(at), bytes, true);
        }
    }
}
