//! Whether a library can be preloaded into a program: what its file says.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
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
/// Header of an ELF file of 64 bits, and of one part of it.
const HEADER_BYTES: usize = 64;
const PART_BYTES: usize = 56;
/// The part that names the dynamic linker.
const PT_INTERP: u32 = 3;
const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;

/// Looks at the file of a command, as execvp(3) finds it; `None` if there is none that can be looked at.
pub(crate) fn look_at(command: &OsStr) -> Option<Fit> {
    let mut path = find(command)?;
    for _ in 0..SCRIPTS_MAX {
        let file = File::open(&path).ok()?;
        let status = file.metadata().ok()?;
        let is_others = status.mode() & SET_UID != 0 && status.uid() != rustix::process::geteuid().as_raw()
            || status.mode() & SET_GID != 0 && status.gid() != rustix::process::getegid().as_raw();
        if is_others {
            return Some(Fit::Unfit(
                "it is set-uid or set-gid, and runs with another's rights".to_owned(),
            ));
        }
        let mut start = Vec::new();
        (&file).take(512).read_to_end(&mut start).ok()?;
        match start.strip_prefix(b"#!") {
            Some(line) => path = interpreter(line)?,
            None => return Some(fit(&file, &start)),
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

/// Looks at a program's header.
fn fit(file: &File, header: &[u8]) -> Fit {
    let unfit = |reason: &str| Fit::Unfit(reason.to_owned());
    let Some(header) = header
        .get(..HEADER_BYTES)
        .filter(|header| header.starts_with(b"\x7FELF\x02\x01"))
    else {
        return unfit("it is no ELF program of 64 bits");
    };
    let number = |bytes: &[u8], at: usize, length: usize| {
        let bytes = &bytes[at..at + length];
        bytes
            .iter()
            .rev()
            .fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let (offset, count) = (number(header, 32, 8), number(header, 56, 2));
    for nth in 0..count {
        let mut part = [0; PART_BYTES];
        let at = offset.saturating_add(nth * PART_BYTES as u64);
        if file.read_exact_at(&mut part, at).is_err() {
            return unfit("its file is cut off");
        }
        if number(&part, 0, 4) != u64::from(PT_INTERP) {
            continue;
        }
        let mut name = vec![0; usize::try_from(number(&part, 32, 8).min(4096)).unwrap_or(0)];
        if file.read_exact_at(&mut name, number(&part, 8, 8)).is_err() {
            return unfit("its file is cut off");
        }
        let name = String::from_utf8_lossy(&name);
        let linker = name
            .trim_end_matches('\0')
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned();
        return match linker.starts_with("ld-linux") {
            true => Fit::Fits,
            false => Fit::Other(format!("its C library is not glibc: it is linked by {linker}")),
        };
    }
    unfit("it is linked statically")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn programs_scripts_and_other_files_are_told_apart() {
        let directory = tempfile::tempdir().expect("there is room");
        let path = |name: &str| directory.path().join(name);
        let look = |name: &str| look_at(path(name).as_os_str());
        let own = std::env::current_exe().expect("a test has a file");
        assert_eq!(look_at(own.as_os_str()), Some(Fit::Fits));
        assert_eq!(look_at(OsStr::new("sh")), Some(Fit::Fits));
        fs::write(path("script"), "#! /bin/sh -e\nexit\n").expect("there is room");
        assert_eq!(look("script"), Some(Fit::Fits));
        fs::write(path("text"), "echo").expect("there is room");
        assert!(matches!(look("text"), Some(Fit::Unfit(reason)) if reason.contains("no ELF")));
        assert_eq!(look("absent"), None);

        // Parts of a header: no dynamic linker, another one, and an end too early.
        let mut bytes = fs::read(&own).expect("it can be read");
        let parts = 64;
        let count = usize::from(bytes[56]);
        let interp = (0..count)
            .map(|nth| parts + nth * PART_BYTES)
            .find(|at| bytes[*at] == 3)
            .expect("it has a linker");
        let name = usize::from(bytes[interp + 8]) | usize::from(bytes[interp + 9]) << 8;
        let mut other = bytes.clone();
        let at = (name..)
            .find(|at| other[*at..].starts_with(b"ld-linux"))
            .expect("glibc's");
        other[at..at + 8].copy_from_slice(b"ld-musl-");
        fs::write(path("other"), &other).expect("there is room");
        assert!(matches!(look("other"), Some(Fit::Other(reason)) if reason.contains("ld-musl")));
        bytes[interp] = 0;
        fs::write(path("static"), &bytes).expect("there is room");
        assert!(matches!(look("static"), Some(Fit::Unfit(reason)) if reason.contains("statically")));
        fs::write(path("cut"), &bytes[..80]).expect("there is room");
        assert!(matches!(look("cut"), Some(Fit::Unfit(reason)) if reason.contains("cut off")));
    }
}
