//! One target of `checks/`, driven by libFuzzer, which keeps the inputs that reach code that no other reached.
//!
//! `WEIR_FUZZ` says which. `./dev fuzz` builds it with coverage and gives it the corpora; an input that it stops at
//! belongs into `corpus/`, where the tests put it through the same check.
#![no_main]

mod checks;

use std::sync::LazyLock;

static CHECK: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let wanted = std::env::var("WEIR_FUZZ").unwrap_or_default();
    let found = checks::TARGETS.iter().find(|(name, _)| *name == wanted);
    found.unwrap_or_else(|| panic!("WEIR_FUZZ is '{wanted}', which is no target of fuzz/checks")).1
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| CHECK(bytes));
