//! What is shipped carries no symbols: `make build` makes the module with the release profile.

/// Names of sections that a stripped file does not have.
const SYMBOLS: [&[u8]; 3] = [b"\0.symtab\0", b"\0.debug_info\0", b"\0.debug_line\0"];

#[test]
fn the_module_is_stripped() {
    let module = concat!(env!("CARGO_MANIFEST_DIR"), "/../redislock.so");
    let bytes = std::fs::read(module).unwrap();
    for name in SYMBOLS {
        let found = bytes.windows(name.len()).any(|window| window == name);
        assert!(!found, "{} is in it", String::from_utf8_lossy(name));
    }
}
