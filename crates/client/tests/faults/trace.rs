//! A thread of a program that is stopped at instructions of the library, by ptrace(2). It knows those of x86-64; elsewhere nothing is stopped.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::ptr::null_mut;

/// The instruction by which a program stops itself.
const STOP: u8 = 0xCC;

/// A thread that is traced by the thread which has begun that.
pub(super) struct Traced {
    thread: libc::pid_t,
    /// Instructions of the library.
    library: Range<u64>,
}

/// A place on a thread's way: before an instruction is carried out for the `visit`th time; of one that repeats itself, after `repeated` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) address: u64,
    visit: u32,
    repeated: u32,
    /// Whether a copy or a system call has begun before it.
    pub(super) is_late: bool,
    /// Whether a copy has begun to store bytes before it, and has not returned.
    pub(super) is_amid: bool,
}

/// Repetitions after which an instruction that repeats itself is a place once more.
const REPEATED: [u32; 3] = [0, 1, 8];
/// Bytes of such an instruction: `rep movsb`.
const REPEATING_BYTES: u64 = 2;
/// The instruction that is a system call.
const SYSTEM_CALL: [u8; 2] = [0x0F, 0x05];
/// Instructions by which copies begin: `movups xmm0, [rsi]` and `vmovups ymm0, [rsi]`.
const LOADS: [&[u8]; 2] = [&[0x0F, 0x10, 0x06], &[0xC5, 0xFC, 0x10, 0x06]];
/// Instructions that store what those have loaded.
const STORES: [&[u8]; 2] = [&[0x0F, 0x11, 0x07], &[0xC5, 0xFC, 0x11, 0x07]];
/// The instruction that ends a copy.
const RETURN: u8 = 0xC3;

impl Traced {
    /// Begins to trace the first thread of a process.
    pub(super) fn begin(process: u32) -> Self {
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
        let is_library = |line: &&str| line.ends_with("libhomenode.so") && line.contains(" r-xp ");
        let line = maps.lines().find(is_library).expect("the library is preloaded");
        let (start, end) = line.split(' ').next().and_then(|range| range.split_once('-')).unwrap();
        let library = u64::from_str_radix(start, 16).unwrap()..u64::from_str_radix(end, 16).unwrap();
        let thread = process.try_into().unwrap();
        let traced = Self { thread, library };
        traced.ask(libc::PTRACE_SEIZE, 0, 0);
        traced
    }

    fn ask(&self, request: libc::c_uint, address: u64, data: u64) -> i64 {
        let done = unsafe { libc::ptrace(request, self.thread, address, data) };
        assert!(done != -1, "ptrace {request}: {}", std::io::Error::last_os_error());
        done
    }

    fn registers(&self) -> libc::user_regs_struct {
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        self.ask(libc::PTRACE_GETREGS, 0, &raw mut registers as u64);
        registers
    }

    fn counter(&self) -> u64 {
        self.registers().rip
    }

    fn set_counter(&self, to: u64) {
        let mut registers = self.registers();
        registers.rip = to;
        self.ask(libc::PTRACE_SETREGS, 0, &raw mut registers as u64);
    }

    /// Goes on until a trap; other signals are the program's own.
    fn go_on(&self, request: libc::c_uint) {
        let mut signal = 0;
        loop {
            self.ask(request, 0, signal);
            signal = match self.wait() {
                libc::SIGTRAP => return,
                other => other as u64,
            };
        }
    }

    fn wait(&self) -> i32 {
        let mut status = 0;
        let waited = unsafe { libc::waitpid(self.thread, &raw mut status, libc::__WALL) };
        assert_eq!(waited, self.thread);
        assert!(libc::WIFSTOPPED(status), "the program has ended: {status:x}");
        libc::WSTOPSIG(status)
    }

    /// Waits for the first stop.
    pub(super) fn wait_for_stop(&self) {
        loop {
            match self.wait() {
                libc::SIGTRAP => return,
                other => _ = self.ask(libc::PTRACE_CONT, 0, other as u64),
            }
        }
    }

    /// Goes on to where the program stops itself next; gives the place behind that instruction.
    pub(super) fn to_stop(&self) -> u64 {
        self.go_on(libc::PTRACE_CONT);
        self.counter()
    }

    /// Eight bytes of instructions.
    fn code(&self, address: u64) -> u64 {
        // All bits are a good answer; the address is the thread's own.
        let code = unsafe { libc::ptrace(libc::PTRACE_PEEKTEXT, self.thread, address, null_mut::<u8>()) };
        code as u64
    }

    /// Goes on to an instruction. False if the program has stopped itself before.
    fn to_address(&self, address: u64) -> bool {
        let before = self.code(address);
        self.ask(libc::PTRACE_POKETEXT, address, before & !0xFF | u64::from(STOP));
        self.go_on(libc::PTRACE_CONT);
        self.ask(libc::PTRACE_POKETEXT, address, before);
        let is_there = self.counter() == address + 1;
        if is_there {
            self.set_counter(address);
        }
        is_there
    }

    /// Goes on to a place. False if the program has stopped itself before.
    pub(super) fn to_place(&self, place: &Place) -> bool {
        let is_there = self.counter() == place.address;
        for _ in u32::from(is_there)..place.visit {
            if self.counter() == place.address {
                self.go_on(libc::PTRACE_SINGLESTEP);
            }
            if !self.to_address(place.address) {
                return false;
            }
        }
        for _ in 0..place.repeated {
            self.go_on(libc::PTRACE_SINGLESTEP);
        }
        true
    }

    /// Goes on instruction by instruction to where the program stops itself at `stop`; gives the places of the library on the way: the first `visits` of each instruction.
    /// A step takes some 20 µs where the processor is a virtual one.
    pub(super) fn places_until(&self, stop: u64, visits: u32) -> Vec<Place> {
        let mut places: Vec<Place> = Vec::new();
        let mut visited = HashMap::<u64, u32>::new();
        let (mut address, mut is_late, mut is_amid) = (self.counter(), false, false);
        while address != stop - 1 {
            let code = self.code(address).to_le_bytes();
            let is_one = |of: &[&[u8]]| of.iter().any(|one| code.starts_with(one));
            is_late |= is_one(&[&SYSTEM_CALL]) || is_one(&LOADS);
            self.go_on(libc::PTRACE_SINGLESTEP);
            let next = self.counter();
            let is_repeating = next == address;
            if is_repeating {
                is_late = true;
                assert!(self.to_address(address + REPEATING_BYTES));
            }
            let visit = visited.entry(address).or_default();
            *visit += 1;
            if self.library.contains(&address) && *visit <= visits {
                let count = if is_repeating { REPEATED.len() } else { 1 };
                places.extend(REPEATED.iter().take(count).map(|repeated| Place {
                    address,
                    visit: *visit,
                    repeated: *repeated,
                    is_late,
                    is_amid: *repeated > 0 || is_amid,
                }));
            }
            is_amid = (is_amid || is_one(&STORES)) && code[0] != RETURN;
            address = self.counter();
        }
        self.to_stop();
        places
    }
}
