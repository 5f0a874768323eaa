//! The name by which programs that link the library find it.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libhomenode.so");
}
