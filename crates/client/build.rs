//! The name by which programs link the library, and the unwinder within it: the shared one takes a third of the time that a program
//! with the library takes longer to start.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libhomenode.so");
    println!("cargo::rerun-if-changed=build.rs");
    // Where the compiler has no such library, the shared one does.
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
