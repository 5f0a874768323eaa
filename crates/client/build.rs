//! The name by which programs link the library, that it stays in a process, and the unwinder within it: the shared one takes a third of the time that a program
//! with the library takes longer to start.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libhomenode.so");
    // It stays after dlclose(3): the action for SIGBUS is its function.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // A thread may end within its functions: see src/ending.rs.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--wrap=rust_eh_personality");
    // The list of functions in src/real.rs is its own.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,start-stop-visibility=hidden");
    println!("cargo::rerun-if-changed=build.rs");
    // The library that is looked for is this machine's; where there is none, the shared one does.
    if env::var_os("HOST") != env::var_os("TARGET") {
        return;
    }
    let found = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output();
    let Some(found) = found.ok().and_then(|found| String::from_utf8(found.stdout).ok()) else {
        return;
    };
    if let Some(directory) = Path::new(found.trim())
        .parent()
        .filter(|directory| directory.is_absolute())
    {
        println!("cargo::rustc-link-search=native={}", directory.display());
        println!("cargo::rustc-link-lib=static:-bundle=gcc_eh");
    }
}
