//! CPUs: where a thread runs, where it may run, and keeping it there.
//!
//! [`current_cpu`] is on the data path (one instruction, or about 2 ns by the C library); the rest is for
//! start-up, except [`thread_cpu`], which reads one /proc file without touching the heap.

use crate::process::{Stat, check};
use crate::topology::sysfs::parse_list;
use homenode_engine::CpuId;
use rustix::fs::{Mode, OFlags};
use std::ffi::CStr;
use std::io::{self, Write};
use std::mem::size_of;

/// The CPU this thread runs on, now; it may be another one by the time the caller looks.
#[inline(always)]
#[must_use]
pub fn current_cpu() -> CpuId {
    #[cfg(target_arch = "x86_64")]
    if has_rdpid() {
        let id: u64;
        // SAFETY: reads a register that Linux sets on every CPU; the processor has the instruction.
        unsafe { std::arch::asm!("rdpid {id}", id = out(reg) id, options(nomem, nostack, preserves_flags)) };
        // Linux: the CPU in the low 12 bits, its node above.
        return CpuId(u32::try_from(id & 0xfff).expect("id & 0xfff fits 32 bits"));
    }
    asked_cpu()
}

/// From the C library, which finds it in the thread's rseq area.
fn asked_cpu() -> CpuId {
    // SAFETY: takes nothing and touches no memory of ours.
    let cpu = unsafe { libc::sched_getcpu() };
    // Fails only where the kernel lacks the call (before 2.6.19): any CPU is as good then.
    CpuId(u32::try_from(cpu).unwrap_or(0))
}

/// Whether the processor tells its number by one instruction, as Linux numbers it. Found once.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn has_rdpid() -> bool {
    use std::sync::atomic::{AtomicU8, Ordering};
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static FOUND: AtomicU8 = AtomicU8::new(UNKNOWN);
    #[cold]
    fn find() -> bool {
        // CPUID leaf 7, ECX bit 22. The standard library has no name for it.
        let max = std::arch::x86_64::__cpuid(0).eax;
        let has = max >= 7 && std::arch::x86_64::__cpuid_count(7, 0).ecx & (1 << 22) != 0;
        FOUND.store(if has { YES } else { NO }, Ordering::Relaxed);
        has
    }
    let found = FOUND.load(Ordering::Relaxed);
    found == YES || found == UNKNOWN && find()
}

/// Keeps the calling thread on `cpu`.
///
/// # Errors
/// The errno of `sched_setaffinity`: EINVAL when the CPU is offline or outside the thread's cpuset.
pub fn pin_to_cpu(cpu: CpuId) -> io::Result<()> {
    pin_to_node_cpus(&[cpu])
}

/// Keeps the calling thread on `cpus`: those of a node.
///
/// # Errors
/// The errno of `sched_setaffinity`: EINVAL when none of them is online and in the thread's cpuset.
pub fn pin_to_node_cpus(cpus: &[CpuId]) -> io::Result<()> {
    set_cpus(0, cpus)
}

/// Lets thread `tid`, of any process, run on those of `cpus` that its cpuset has, and on no others.
///
/// # Errors
/// The errno of `sched_setaffinity`: EINVAL when none of them is online and in the thread's cpuset, ESRCH when there is no
/// such thread, EPERM when it is another user's.
pub fn set_thread_cpus(tid: u32, cpus: &[CpuId]) -> io::Result<()> {
    match libc::pid_t::try_from(tid) {
        Ok(tid) if tid > 0 => set_cpus(tid, cpus),
        _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

/// 0 names the calling thread.
fn set_cpus(tid: libc::pid_t, cpus: &[CpuId]) -> io::Result<()> {
    let mut mask = CpuMask::empty();
    for cpu in cpus {
        mask.insert(*cpu)?;
    }
    // SAFETY: the mask is readable for the length given; a thread's number is any number.
    check(unsafe { libc::sched_setaffinity(tid, CpuMask::BYTES, mask.words.as_ptr().cast()) })
}

/// The CPUs of the node that the calling thread runs on now, ascending; `None` where the kernel tells no nodes.
#[must_use]
pub fn near_cpus() -> Option<Vec<CpuId>> {
    let directory = format!("/sys/devices/system/cpu/cpu{}", current_cpu().0);
    let mut entries = std::fs::read_dir(directory).ok()?.filter_map(Result::ok);
    let is_node = |name: &str| {
        name.strip_prefix("node")
            .is_some_and(|number| number.parse::<u16>().is_ok())
    };
    let node = entries.find(|entry| entry.file_name().to_str().is_some_and(is_node))?;
    let list = std::fs::read_to_string(node.path().join("cpulist")).ok()?;
    Some(parse_list(&list)?.into_iter().map(CpuId).collect())
}

/// The CPUs the calling thread may run on, ascending.
///
/// # Errors
/// The errno of `sched_getaffinity`: EINVAL on a machine of more than 8192 CPUs.
pub fn allowed_cpus() -> io::Result<Vec<CpuId>> {
    let mut mask = CpuMask::empty();
    // SAFETY: the mask is writable for the length given; 0 names the calling thread.
    check(unsafe { libc::sched_getaffinity(0, CpuMask::BYTES, mask.words.as_mut_ptr().cast()) })?;
    Ok(mask.cpus())
}

/// How many CPUs this machine can ever have, offline ones and empty sockets included; at least those there are.
#[must_use]
pub fn possible_cpus() -> usize {
    count_of("/sys/devices/system/cpu/possible")
}

/// How many CPUs are in this machine, offline ones included; at least those this thread may use.
#[must_use]
pub fn present_cpus() -> usize {
    count_of("/sys/devices/system/cpu/present")
}

fn count_of(list: &str) -> usize {
    let allowed = || std::thread::available_parallelism().map_or(1, usize::from);
    let list = std::fs::read_to_string(list);
    let count = |list: String| parse_list(&list).map(|cpus| cpus.len());
    list.ok().and_then(count).unwrap_or_else(allowed)
}

/// 52 numbers of at most 20 digits and a name of at most 64 bytes.
const STAT_BYTES_MAX: usize = 1536;

/// The CPU that thread `tid` last ran on; none when there is no such thread (any more). No heap, three system calls.
#[must_use]
pub fn thread_cpu(tid: u32) -> Option<CpuId> {
    let mut path = [0_u8; 24];
    // "/proc/4294967295/stat" and its zero are 22 bytes, so the rest of the array stays zero.
    write!(&mut path[..], "/proc/{tid}/stat").ok()?;
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut line = [0_u8; STAT_BYTES_MAX];
    let filled = rustix::io::read(file, &mut line).ok()?;
    Stat::parse(&line[..filled]).map(|stat| CpuId(stat.cpu))
}

/// A set of CPUs in the form of the affinity calls. The kernel's own limit (`NR_CPUS`) is 8192.
#[repr(transparent)]
pub(crate) struct CpuMask {
    words: [libc::c_ulong; Self::CPUS / Self::WORD_BITS],
}

impl CpuMask {
    const CPUS: usize = 8192;
    const WORD_BITS: usize = libc::c_ulong::BITS as usize;
    const BYTES: usize = Self::CPUS / Self::WORD_BITS * size_of::<libc::c_ulong>();

    pub(crate) fn empty() -> Self {
        Self {
            words: [0; Self::CPUS / Self::WORD_BITS],
        }
    }

    fn insert(&mut self, cpu: CpuId) -> io::Result<()> {
        let word = self
            .words
            .get_mut(cpu.0 as usize / Self::WORD_BITS)
            .ok_or(io::ErrorKind::InvalidInput)?;
        *word |= 1 << (cpu.0 as usize % Self::WORD_BITS);
        Ok(())
    }

    pub(crate) fn cpus(&self) -> Vec<CpuId> {
        (0..)
            .zip(self.words)
            .flat_map(|(index, word)| {
                let first = index * libc::c_ulong::BITS;
                (0..libc::c_ulong::BITS)
                    .filter(move |bit| word >> bit & 1 == 1)
                    .map(move |bit| CpuId(first + bit))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::own_thread;

    #[test]
    fn possible_cpus_include_allowed_ones() {
        assert!(possible_cpus() >= present_cpus());
        assert!(present_cpus() >= allowed_cpus().unwrap().len());
    }

    #[test]
    fn pinning_moves_the_thread() {
        for cpu in allowed_cpus().unwrap() {
            std::thread::spawn(move || {
                pin_to_cpu(cpu).unwrap();
                assert_eq!(current_cpu(), cpu);
                assert_eq!(allowed_cpus().unwrap(), vec![cpu]);
            })
            .join()
            .unwrap();
        }
    }

    #[test]
    fn pinning_to_a_set_keeps_within_it() {
        let cpus = allowed_cpus().unwrap();
        std::thread::spawn(move || {
            pin_to_node_cpus(&cpus).unwrap();
            assert_eq!(allowed_cpus().unwrap(), cpus);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn pinning_to_impossible_cpus_is_refused() {
        assert_eq!(pin_to_cpu(CpuId(8191)).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert_eq!(
            pin_to_cpu(CpuId(1 << 20)).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }

    #[test]
    fn the_cpu_of_a_thread_with_an_odd_name_is_read() {
        let cpu = *allowed_cpus().unwrap().last().unwrap();
        let (told, tid) = std::sync::mpsc::channel();
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            pin_to_cpu(cpu).unwrap();
            rustix::thread::set_name(c"a) b (c) 1 2").unwrap();
            told.send(own_thread()).unwrap();
            wait.recv().unwrap();
        });
        assert_eq!(thread_cpu(tid.recv().unwrap()), Some(cpu));
        go_on.send(()).unwrap();
        thread.join().unwrap();
    }

    #[test]
    fn the_cpu_of_a_missing_thread_is_an_error() {
        assert_eq!(thread_cpu(u32::MAX), None);
        assert_eq!(thread_cpu(0), None);
    }

    #[test]
    fn the_longest_stat_line_fits_the_buffer() {
        let mut line = format!("{} ({}) S", i32::MAX, ") ".repeat(32));
        for number in 4..=52 {
            let (parent, session, threads, processor, priority) = (4, 6, 20, 39, 40);
            let value = match number {
                _ if number == processor => 77,
                _ if [parent, session, threads, priority].contains(&number) => u64::from(u32::MAX),
                _ => u64::MAX,
            };
            line.push_str(&format!(" {value}"));
        }
        assert!(line.len() < STAT_BYTES_MAX, "{}", line.len());
        assert_eq!(Stat::parse(line.as_bytes()).unwrap().cpu, 77);
    }
}
