//! The C ABI's header is that of its functions.

use std::path::Path;

#[test]
fn c_header_matches_the_exported_functions() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(own.join("cbindgen.toml")).unwrap();
    let builder = cbindgen::Builder::new().with_config(config);
    let bindings = builder.with_src(own.join("src/abi.rs")).generate().unwrap();
    let mut made = Vec::new();
    bindings.write(&mut made);
    let header = own.join("include/homenode.h");
    if std::env::var_os("HOMENODE_WRITE_HEADER").is_some() {
        std::fs::write(&header, &made).unwrap();
    }
    let there = std::fs::read(&header).unwrap();
    assert!(
        there == made,
        "{header:?} is out of date: HOMENODE_WRITE_HEADER=1 cargo test -p homenode-client header"
    );
}
