//! Bytes of the pool that are lent to a caller, who looks at them where they lie.

use crate::copy;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that lie one behind the other in the pool, for the time of a call. Others may change them meanwhile: so there is no reference to them, and
/// what is looked at twice may differ.
#[derive(Clone, Copy, Debug)]
pub struct Lent<'a> {
    start: *const u8,
    bytes: usize,
    _while_inside: PhantomData<&'a ()>,
}

impl Lent<'_> {
    /// `bytes` bytes at `start`.
    ///
    /// # Safety
    /// They are readable as long as this lives; whoever changes them meanwhile does so by [`crate::copy`], by atomic stores, or is the kernel.
    pub(super) const unsafe fn new(start: *const u8, bytes: usize) -> Self {
        Self {
            start,
            bytes,
            _while_inside: PhantomData,
        }
    }

    /// Some of these bytes, which nobody changes.
    ///
    /// # Panics
    /// When there are not that many.
    #[must_use]
    pub const fn of(words: &'static [u64], bytes: usize) -> Self {
        assert!(bytes <= size_of_val(words), "more bytes than the words have");
        // SAFETY: they are readable for ever, and nobody changes them.
        unsafe { Self::new(words.as_ptr().cast(), bytes) }
    }

    /// How many.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none: the end of the file.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where they are, for means of the caller's own, as a checksum or a device: whoever reads there must bear with bytes that change.
    #[must_use]
    pub const fn as_ptr(&self) -> *const u8 {
        self.start
    }

    /// The eight bytes from `at` on, in the machine's order.
    ///
    /// # Panics
    /// When they are not all lent, or do not lie at a multiple of 8 bytes in the file.
    #[inline]
    #[must_use]
    pub fn word(&self, at: usize) -> u64 {
        assert!(
            at.checked_add(8).is_some_and(|end| end <= self.bytes),
            "beyond the lent bytes"
        );
        let word = self.start.wrapping_add(at).cast::<u64>();
        assert!(word.is_aligned(), "not at a multiple of 8 bytes");
        // SAFETY: aligned, and within the bytes that `new` was promised to be readable; it is only loaded from.
        let word = unsafe { AtomicU64::from_ptr(word.cast_mut()) };
        // Relaxed: it orders nothing.
        word.load(Ordering::Relaxed)
    }

    /// Copies the bytes from `at` on.
    ///
    /// # Panics
    /// When they are not all lent.
    pub fn copy_to(&self, at: usize, to: &mut [u8]) {
        let end = at.checked_add(to.len());
        assert!(end.is_some_and(|end| end <= self.bytes), "beyond the lent bytes");
        // SAFETY: the bytes are readable, by what `new` was promised; `to` is a slice and no part of the pool.
        unsafe { copy::load(to.as_mut_ptr(), self.start.wrapping_add(at), to.len()) };
    }
}
