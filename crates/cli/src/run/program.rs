//! Whether a library can be preloaded into a program: what its file says.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Whether it can be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// It is dynamically linked, to glibc.
    Fits,
    /// Why not: the dynamic linker, if there is one, does not look for it. Programs that it starts may.
    Unfit(String),
    /// Why not: another dynamic linker would stumble over it.
    Other(String),
}

/// Scripts that name scripts: as many as the kernel takes.
const SCRIPTS_MAX: usize = 5;
/// Shell that runs a file without a first line that names a program.
const SHELL: &str = "/bin/sh";
/// Capabilities of a file, as an attribute.
const CAPABILITIES: &str = "security.capability";
/// Bytes of a program that are read at once: headers and the dynamic linker's name are among them as a rule.
const START_BYTES: usize = 1024;
/// Number of this machine's kind in an ELF file.
const MACHINE: u64 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
/// Header of a part of an ELF file of 64 bits.
const PART_BYTES: usize = 56;
/// The part that names the dynamic linker, and bytes of a name at most.
const PT_INTERP: u64 = 3;
const NAME_BYTES_MAX: usize = 4096;
const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;

/// Looks at the file of a command, as execvp(3) finds it; `None` if there is none that can be looked at.
pub(crate) fn look_at(command: &OsStr) -> Option<Fit> {
    let mut path = find(command)?;
    for _ in 0..SCRIPTS_MAX {
        // Opening a pipe waits for a writer, and opening a device may do anything.
        std::fs::metadata(&path).ok().filter(Metadata::is_file)?;
        let file = File::open(&path).ok()?;
        let status = file.metadata().ok()?;
        let is_others = status.mode() & SET_UID != 0 && status.uid() != rustix::process::geteuid().as_raw()
            || status.mode() & SET_GID != 0 && status.gid() != rustix::process::getegid().as_raw();
        if is_others {
            return Some(unfit("it is set-uid or set-gid, and runs with another's rights"));
        }
        // Root has them all already, and the dynamic linker does as ever.
        if !rustix::process::geteuid().is_root() && rustix::fs::fgetxattr(&file, CAPABILITIES, &mut [0_u8; 0]).is_ok() {
            return Some(unfit("it has file capabilities, and runs with more rights"));
        }
        let mut start = [0; START_BYTES];
        let bytes = file.read_at(&mut start, 0).ok()?;
        let start = &start[..bytes];
        if let Some(line) = start.strip_prefix(b"#!") {
            path = interpreter(line)?;
        } else if start.starts_with(b"\x7FELF") {
            return Some(fit(&file, start).unwrap_or_else(|| unfit("its file is cut off")));
        } else {
            // As execvp(3) does.
            path = SHELL.into();
        }
    }
    None
}

fn find(command: &OsStr) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(command.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(command))
        .find(|file| {
            file.metadata()
                .is_ok_and(|file| file.is_file() && file.mode() & 0o111 != 0)
        })
}

/// The program that a script's first line names.
fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line
        .split(|byte| matches!(byte, b' ' | b'\t'))
        .filter(|word| !word.is_empty());
    Some(Path::new(OsStr::from_bytes(words.next()?)).to_owned())
}

/// Looks at a program's header, in its first bytes as a rule; `None` if it names what is beyond its end.
fn fit(file: &File, start: &[u8]) -> Option<Fit> {
    if !start.starts_with(b"\x7FELF\x02\x01") {
        return Some(Fit::Other("it is no program of 64 bits for this machine".to_owned()));
    }
    let bytes = |at: u64, length: usize| -> Option<Cow<'_, [u8]>> {
        let begin = usize::try_from(at).ok()?;
        if let Some(found) = start.get(begin..begin.checked_add(length)?) {
            return Some(found.into());
        }
        let mut beyond = vec![0; length];
        file.read_exact_at(&mut beyond, at).ok()?;
        Some(beyond.into())
    };
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    if number(&bytes(18, 2)?) != MACHINE {
        return Some(Fit::Other("it is for machines of another kind".to_owned()));
    }
    let (parts, count) = (number(&bytes(32, 8)?), number(&bytes(56, 2)?));
    for nth in 0..count {
        let part = bytes(parts.saturating_add(nth * PART_BYTES as u64), PART_BYTES)?;
        if number(&part[..4]) != PT_INTERP {
            continue;
        }
        let length = usize::try_from(number(&part[32..40])).ok()?;
        let name = bytes(number(&part[8..16]), length.min(NAME_BYTES_MAX))?;
        let linker = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        return Some(match linker.starts_with(b"ld-linux") {
            true => Fit::Fits,
            false => {
                let linker = String::from_utf8_lossy(linker);
                Fit::Other(format!(
                    "its C library is not glibc: it is linked by {}",
                    linker.trim_end_matches('\0')
                ))
            }
        });
    }
    Some(unfit("it is linked statically"))
}

fn unfit(reason: &str) -> Fit {
    Fit::Unfit(reason.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn programs_scripts_and_other_files_are_distinguished() {
        let directory = tempfile::tempdir().expect("the file can be written");
        let path = |name: &str| directory.path().join(name);
        let look = |name: &str| look_at(path(name).as_os_str());
        let own = std::env::current_exe().expect("a test has a file");
        assert_eq!(look_at(own.as_os_str()), Some(Fit::Fits));
        assert_eq!(look_at(OsStr::new("sh")), Some(Fit::Fits));
        fs::write(path("script"), "#! /bin/sh -e\nexit\n").expect("the file can be written");
        assert_eq!(look("script"), Some(Fit::Fits));
        fs::write(path("text"), "echo").expect("the file can be written");
        assert_eq!(look("text"), Some(Fit::Fits));
        assert_eq!(look("absent"), None);
        rustix::fs::mkfifoat(rustix::fs::CWD, path("pipe"), 0o700.into()).expect("a pipe can be made");
        assert_eq!(look("pipe"), None, "nobody writes into it");

        // Parts of a header: no dynamic linker, another one, and an end too early.
        let mut bytes = fs::read(&own).expect("it can be read");
        let parts = 64;
        let count = usize::from(bytes[56]);
        let interp = (0..count)
            .map(|nth| parts + nth * PART_BYTES)
            .find(|at| bytes[*at] == 3)
            .expect("it has a linker");
        let name = usize::from(bytes[interp + 8]) | usize::from(bytes[interp + 9]) << 8;
        let mut short = bytes.clone();
        short[4] = 1;
        fs::write(path("short"), &short).expect("the file can be written");
        assert!(matches!(look("short"), Some(Fit::Other(reason)) if reason.contains("64 bits")));
        let mut foreign = bytes.clone();
        foreign[18] = 0xF3;
        fs::write(path("foreign"), &foreign).expect("the file can be written");
        assert!(matches!(look("foreign"), Some(Fit::Other(reason)) if reason.contains("another kind")));
        let mut other = bytes.clone();
        let at = (name..)
            .find(|at| other[*at..].starts_with(b"ld-linux"))
            .expect("the program's linker is glibc's");
        other[at..at + 8].copy_from_slice(b"ld-musl-");
        fs::write(path("other"), &other).expect("the file can be written");
        assert!(matches!(look("other"), Some(Fit::Other(reason)) if reason.contains("ld-musl")));
        bytes[interp] = 0;
        fs::write(path("static"), &bytes).expect("the file can be written");
        assert!(matches!(look("static"), Some(Fit::Unfit(reason)) if reason.contains("statically")));
        fs::write(path("cut"), &bytes[..80]).expect("the file can be written");
        assert!(matches!(look("cut"), Some(Fit::Unfit(reason)) if reason.contains("cut off")));
    }
}
