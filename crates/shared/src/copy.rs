//! A copy that may meet a page which cannot be had: it ends early, where a signal would end the program.
//!
//! One routine an architecture, as the kernel's own copies from and to user space: the handler of SIGBUS finds the interrupted instruction within the routine,
//! and goes on at its end, which returns how many bytes are left. Cost: nothing but the copy.

use std::arch::global_asm;

// Registers: to, from, bytes. Returns the bytes that were not copied.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".globl homenode_copy, homenode_copy_end",
    ".hidden homenode_copy, homenode_copy_end",
    ".type homenode_copy,@function",
    "homenode_copy:",
    "mov rcx, rdx",
    // The string instruction takes some 30 ns to begin, which pays from about here on.
    "cmp rcx, 2048",
    "jb 5f",
    // It takes seven times as long where each load has the low twelve bits of a store right before it (4K aliasing; AMD EPYC).
    "mov eax, edi",
    "sub eax, esi",
    "and eax, 4095",
    "dec eax",
    "cmp eax, 62",
    "ja 3f",
    "5:",
    "cmp rcx, 64",
    "jb 2f",
    "1:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "sub rcx, 64",
    "cmp rcx, 64",
    "jae 1b",
    // Each byte is stored once: others may have written there meanwhile.
    "2:",
    "test cl, 32",
    "jz 22f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "add rsi, 32",
    "add rdi, 32",
    "sub rcx, 32",
    "22:",
    "test cl, 16",
    "jz 23f",
    "movups xmm0, [rsi]",
    "movups [rdi], xmm0",
    "add rsi, 16",
    "add rdi, 16",
    "sub rcx, 16",
    "23:",
    "test cl, 8",
    "jz 24f",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "add rsi, 8",
    "add rdi, 8",
    "sub rcx, 8",
    "24:",
    "test cl, 4",
    "jz 25f",
    "mov eax, [rsi]",
    "mov [rdi], eax",
    "add rsi, 4",
    "add rdi, 4",
    "sub rcx, 4",
    "25:",
    "test cl, 2",
    "jz 26f",
    "movzx eax, word ptr [rsi]",
    "mov [rdi], ax",
    "add rsi, 2",
    "add rdi, 2",
    "sub rcx, 2",
    "26:",
    "test cl, 1",
    "jz homenode_copy_end",
    "movzx eax, byte ptr [rsi]",
    "mov [rdi], al",
    "dec rcx",
    "jmp homenode_copy_end",
    "3:",
    // Interrupted, it has counted down what it has copied.
    "rep movsb",
    "jmp homenode_copy_end",
    // By registers of 32 bytes, which processors with AVX have. From 32 KiB on the string instruction is faster. A copy that a signal ends leaves their
    // upper halves in use, which costs a little time.
    ".globl homenode_copy_wide",
    ".hidden homenode_copy_wide",
    ".type homenode_copy_wide,@function",
    "homenode_copy_wide:",
    "mov rcx, rdx",
    "cmp rcx, 32768",
    "jb 6f",
    "mov eax, edi",
    "sub eax, esi",
    "and eax, 4095",
    "dec eax",
    "cmp eax, 62",
    "ja 3b",
    "6:",
    "cmp rcx, 128",
    "jb 5b",
    "7:",
    "vmovups ymm0, [rsi]",
    "vmovups ymm1, [rsi + 32]",
    "vmovups ymm2, [rsi + 64]",
    "vmovups ymm3, [rsi + 96]",
    "vmovups [rdi], ymm0",
    "vmovups [rdi + 32], ymm1",
    "vmovups [rdi + 64], ymm2",
    "vmovups [rdi + 96], ymm3",
    "sub rsi, -128",
    "sub rdi, -128",
    "add rcx, -128",
    "cmp rcx, 128",
    "jae 7b",
    "vzeroupper",
    "jmp 5b",
    // Copy past the caches: bytes go to memory without being read from there first.
    ".globl homenode_copy_past_caches",
    ".hidden homenode_copy_past_caches",
    ".type homenode_copy_past_caches,@function",
    "homenode_copy_past_caches:",
    "mov rcx, rdx",
    "test edi, 63",
    "jnz homenode_copy",
    "4:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movntps [rdi], xmm0",
    "movntps [rdi + 16], xmm1",
    "movntps [rdi + 32], xmm2",
    "movntps [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "sub rcx, 64",
    "cmp rcx, 64",
    "jae 4b",
    // Such stores are in no order with others until here. Where a signal ends the copy before, the kernel's entry has done it.
    "sfence",
    "test rcx, rcx",
    "jz homenode_copy_end",
    "rep movsb",
    "homenode_copy_end:",
    "mov rax, rcx",
    "ret",
    ".size homenode_copy, . - homenode_copy",
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".globl homenode_copy, homenode_copy_end",
    ".hidden homenode_copy, homenode_copy_end",
    ".type homenode_copy,%function",
    "homenode_copy:",
    "subs x3, x2, #64",
    "b.lo 2f",
    "1:",
    "ldp q0, q1, [x1]",
    "ldp q2, q3, [x1, #32]",
    "stp q0, q1, [x0]",
    "stp q2, q3, [x0, #32]",
    "add x1, x1, #64",
    "add x0, x0, #64",
    "sub x2, x2, #64",
    "subs x3, x3, #64",
    "b.hs 1b",
    "2:",
    "cbz x2, homenode_copy_end",
    "ldrb w4, [x1], #1",
    "strb w4, [x0], #1",
    "sub x2, x2, #1",
    "b 2b",
    "homenode_copy_end:",
    "mov x0, x2",
    "ret",
    ".size homenode_copy, . - homenode_copy",
);

unsafe extern "C" {
    fn homenode_copy(to: *mut u8, from: *const u8, bytes: usize) -> usize;
    fn homenode_copy_end();
    #[cfg(target_arch = "x86_64")]
    fn homenode_copy_wide(to: *mut u8, from: *const u8, bytes: usize) -> usize;
    #[cfg(target_arch = "x86_64")]
    fn homenode_copy_past_caches(to: *mut u8, from: *const u8, bytes: usize) -> usize;
}

/// Fewer bytes do not go past the caches.
pub const PAST_CACHES_BYTES_MIN: u64 = 2048;

/// Copies bytes between a mapping of a file and memory of the caller, both of which others may change meanwhile. False if a page could not be had, in a
/// process whose handler of SIGBUS calls [`end_copy`]: some of the bytes are copied then.
///
/// # Safety
/// `from` can be read and `to` be written for `bytes` bytes, but for pages that a file does not have. They do not overlap.
#[inline]
#[must_use]
pub unsafe fn try_copy(to: *mut u8, from: *const u8, bytes: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: as below, and the processor has AVX.
        return unsafe { homenode_copy_wide(to, from, bytes) == 0 };
    }
    // SAFETY: the caller's. The routine is one call of the C ABI, which touches no memory but these bytes.
    unsafe { homenode_copy(to, from, bytes) == 0 }
}

/// [`try_copy`] to memory that nobody is expected to use soon: its bytes push nothing out of the caches.
///
/// # Safety
/// Those of [`try_copy`].
#[inline]
#[must_use]
pub unsafe fn try_copy_past_caches(to: *mut u8, from: *const u8, bytes: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    if bytes as u64 >= PAST_CACHES_BYTES_MIN {
        // SAFETY: as in `try_copy`.
        return unsafe { homenode_copy_past_caches(to, from, bytes) == 0 };
    }
    // SAFETY: the caller's.
    unsafe { try_copy(to, from, bytes) }
}

/// Has the processor load the first bytes of what will be copied soon. Any address will do.
#[inline]
pub fn prefetch(at: *const u8, bytes: u64) {
    const MOST: usize = 1024;
    let bytes = usize::try_from(bytes).unwrap_or(MOST).min(MOST) + at.addr() % 64;
    for line in (0..bytes).step_by(64) {
        let at = at.wrapping_add(line);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a hint, which reads nothing that a program could tell.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
        }
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        // SAFETY: as above.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags));
        }
    }
}

/// Ends a copy that a signal has interrupted: the thread goes on at the routine's end. False if the signal came from elsewhere. Called in a handler.
#[must_use]
pub fn end_copy(context: &mut libc::ucontext_t) -> bool {
    #[cfg(target_arch = "x86_64")]
    let counter = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    #[cfg(target_arch = "aarch64")]
    let counter = &mut context.uc_mcontext.pc;
    let (start, end) = (
        homenode_copy as *const () as usize,
        homenode_copy_end as *const () as usize,
    );
    let is_inside = usize::try_from(*counter).is_ok_and(|counter| (start..end).contains(&counter));
    if is_inside {
        *counter = end as _;
    }
    is_inside
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    type Copy = unsafe fn(*mut u8, *const u8, usize) -> bool;

    /// [`try_copy`] of a processor without AVX.
    unsafe fn narrow(to: *mut u8, from: *const u8, bytes: usize) -> bool {
        // SAFETY: the caller's.
        unsafe { homenode_copy(to, from, bytes) == 0 }
    }

    extern "C" fn on_bus_error(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel gives a context to an action with SA_SIGINFO, for the time of the call.
        assert!(end_copy(unsafe { &mut *context.cast() }));
    }

    /// In a process of its own: the action for a signal is everybody's.
    #[test]
    fn copy_beyond_the_end_of_a_file_ends_early() {
        const CHILD: &str = "HOMENODE_TEST_COPY";
        if std::env::var_os(CHILD).is_none() {
            let own = std::env::current_exe().expect("a test has a file");
            let test = "copy::tests::copy_beyond_the_end_of_a_file_ends_early";
            let mut child = std::process::Command::new(own);
            let status = child.args([test, "--exact"]).env(CHILD, "1").status();
            assert!(status.expect("the program starts").success());
            return;
        }
        // SAFETY: all zero bits are a sigaction.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        // SAFETY: it points to a sigaction.
        let done = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
        assert_eq!(done, 0);
        let path = std::env::temp_dir().join(format!("homenode-copy-{}", std::process::id()));
        std::fs::write(&path, vec![7; 8192]).expect("the file can be written");
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .open(&path)
            .expect("the file was created");
        std::fs::remove_file(&path).expect("the file was created");
        let (both, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping, of nothing that is used.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), 16384, both, shared, file.as_raw_fd(), 0) };
        assert_ne!(mapped, libc::MAP_FAILED);
        let mapped = mapped.cast::<u8>();
        let mut bytes = vec![1_u8; 16384];
        for count in (0..200).chain([1000, 2047, 2048, 2049, 2111, 4000, 8191, 8192]) {
            // There the low bits of both places differ by 16.
            let alias = (4096 + 16 - bytes.as_ptr().addr() % 4096) % 4096;
            for (copy, at) in [
                (try_copy as Copy, 0),
                (try_copy, alias),
                (narrow, 3),
                (narrow, alias),
                (try_copy_past_caches, 0),
                (try_copy_past_caches, 16),
                (try_copy_past_caches, 5),
            ] {
                bytes.fill(1);
                // SAFETY: both are as long.
                assert!(unsafe { copy(bytes.as_mut_ptr().wrapping_add(at), mapped, count) });
                let (copied, rest) = bytes[at..].split_at(count);
                assert!(copied.iter().all(|byte| *byte == 7) && rest.iter().all(|byte| *byte == 1));
                assert!(bytes[..at].iter().all(|byte| *byte == 1));
            }
        }
        let all: Vec<u8> = (0..8192_u32).map(|at| (at % 251) as u8).collect();
        // SAFETY: both are as long.
        assert!(unsafe { try_copy_past_caches(mapped, all.as_ptr(), 8192) });
        // SAFETY: it is as long, and nobody writes to it.
        assert!(unsafe { std::slice::from_raw_parts(mapped, 8192) } == all);
        // SAFETY: as long, but for pages that the file does not have.
        assert!(!unsafe { try_copy_past_caches(mapped, bytes.as_ptr(), 16384) });
        // SAFETY: as above.
        unsafe { mapped.write_bytes(7, 8192) };
        bytes.fill(1);
        // SAFETY: both are as long, but for pages that the file does not have.
        assert!(!unsafe { try_copy(bytes.as_mut_ptr(), mapped, 8193) });
        // SAFETY: as above.
        assert!(!unsafe { narrow(bytes.as_mut_ptr(), mapped, 8193) });
        assert!(bytes[..8192].iter().all(|byte| *byte == 7) && bytes[8192] == 1);
        // SAFETY: as above.
        assert!(!unsafe { try_copy(bytes.as_mut_ptr(), mapped.wrapping_add(8192 - 192), 256) });
        // SAFETY: as above.
        assert!(!unsafe { try_copy(mapped.wrapping_add(8190), bytes.as_ptr(), 100) });
        // SAFETY: it lies in the mapping, in a page that the file has.
        assert_eq!(unsafe { mapped.wrapping_add(8191).read_volatile() }, 7);
    }
}
