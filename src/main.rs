//! The `weir` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    // First of all: on its way to become a child's program, this process must not have opened anything.
    weir::upstream::shim::run().unwrap_or_else(weir::cli::run)
}
