//! Libraries within the command: each shared one makes `homenode run` start a program 0.1 ms later.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for library in ["gcc_eh", "hwloc", "elf", "z"] {
        // Where there is no such archive, the shared one does.
        let argument = format!("-print-file-name=lib{library}.a");
        let found = Command::new("cc").arg(argument).output();
        let Some(found) = found.ok().and_then(|found| String::from_utf8(found.stdout).ok()) else {
            continue;
        };
        if let Some(directory) = Path::new(found.trim())
            .parent()
            .filter(|directory| directory.is_absolute())
        {
            println!("cargo::rustc-link-search=native={}", directory.display());
            println!("cargo::rustc-link-lib=static:-bundle={library}");
        }
    }
}
