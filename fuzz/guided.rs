//! Runs one target of `checks/` with libFuzzer, which stores the inputs that reach new code.
//!
//! `WEIR_FUZZ` names the target. `./dev fuzz` builds this program with coverage and passes the
//! corpora. Commit an input that fails to `corpus/`, where the tests run the same check on it.
#![no_main]

mod checks;

use std::sync::LazyLock;

static CHECK: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("WEIR_FUZZ").unwrap_or_default();
    let found = checks::TARGETS.iter().find(|(target, _)| *target == name);
    found.unwrap_or_else(|| panic!("WEIR_FUZZ is '{name}', which is not a target of fuzz/checks")).1
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| CHECK(bytes));
