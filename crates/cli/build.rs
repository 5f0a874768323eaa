//! Libraries within the command: each shared one has `homenode run` start a program 0.1 ms later.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The archives that are looked for are this machine's.
    if env::var_os("HOST") != env::var_os("TARGET") {
        return;
    }
    for library in ["gcc_eh", "hwloc", "elf", "z"] {
        // Some are built with more: with zstd, say.
        let needs = said(Command::new("pkg-config").args(["--static", "--libs-only-l", "libelf"]));
        if library == "elf" && needs.as_deref() != Some("-lelf -lz") {
            continue;
        }
        // Where there is no such archive, the shared one does.
        let Some(found) = said(Command::new("cc").arg(format!("-print-file-name=lib{library}.a"))) else {
            continue;
        };
        if let Some(directory) = Path::new(&found).parent().filter(|directory| directory.is_absolute()) {
            println!("cargo::rerun-if-changed={found}");
            println!("cargo::rustc-link-search=native={}", directory.display());
            println!("cargo::rustc-link-lib=static:-bundle={library}");
        }
    }
}

/// A line that a command prints; none where it cannot.
fn said(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
