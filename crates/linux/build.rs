//! Compiles the programs that run in the kernel (`src/affinity/sense/bpf`). They fit themselves to the kernel when they are
//! loaded, so they are the same for all of one byte order.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const SOURCES: &str = "src/affinity/sense/bpf";
const PROGRAMS: [&str; 4] = ["threads", "sockets", "disks", "files"];

fn main() {
    println!("cargo::rerun-if-changed={SOURCES}");
    println!("cargo::rerun-if-env-changed=CLANG");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    for program in PROGRAMS {
        let source = format!("{SOURCES}/{program}.bpf.c");
        let mut command = Command::new(&clang);
        // The debugging information is what the kernel's types are found by. Of the processor only the oldest that has
        // the instructions used is asked for.
        command.args(["-g", "-O2", "-Wall", "-Werror", "-target", "bpfel", "-mcpu=v2"]);
        command
            .args(["-c", &source, "-o"])
            .arg(out.join(format!("{program}.bpf.o")));
        match command.status() {
            Ok(status) if status.success() => {}
            Ok(status) => panic!("{clang} cannot compile {source}: {status}; does it need libbpf-dev?"),
            Err(error) => panic!("cannot run {clang}, which compiles {source}: {error}; scripts/setup.sh installs it"),
        }
    }
}
