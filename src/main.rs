//! The `weir` program.
//!
//! Decision: docs/decisions/0003-allocator-and-release.md

use std::process::ExitCode;

use rustix::process::{Resource, getrlimit};

/// Allocator of optimized builds. A call allocates about a hundred times, and its larger futures
/// exceed the sizes that the system's allocator caches. Unoptimized builds use the system's
/// allocator, which memory debuggers know.
#[cfg(not(debug_assertions))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Stack that reading a configuration may need.
const STACK_BYTES: usize = 4 << 20;

fn main() -> ExitCode {
    // This must come first: a process that only executes a child's program must not have opened
    // anything.
    weir_upstream::process::shim::run().unwrap_or_else(|| with_enough_stack(weir::cli::run))
}

/// Runs the program on a thread with enough stack: the main thread's stack is as large as the
/// shell's limit (`ulimit -s`) says, any other thread's as large as the program says.
fn with_enough_stack(run: fn() -> ExitCode) -> ExitCode {
    let limit = getrlimit(Resource::Stack).current;
    if limit.is_none_or(|bytes| bytes >= STACK_BYTES as u64) {
        return run();
    }
    match std::thread::Builder::new().stack_size(STACK_BYTES).spawn(run).map(|run| run.join()) {
        Ok(ended) => ended.unwrap_or(ExitCode::FAILURE),
        Err(error) => {
            eprintln!("weir: the threads could not be started: {error}");
            ExitCode::from(4)
        }
    }
}
