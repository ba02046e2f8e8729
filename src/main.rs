//! The `weir` program.

use std::process::ExitCode;

use rustix::process::{Resource, getrlimit};

/// A call allocates a hundred times, of which the futures on its way are too large for what the system's allocator keeps
/// at hand. Unoptimized it is the system's, which the tools for looking at memory know.
#[cfg(not(debug_assertions))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// With less than this, what reads a configuration may run out of stack.
const STACK_BYTES: usize = 4 << 20;

fn main() -> ExitCode {
    // First of all: on its way to become a child's program, this process must not have opened anything.
    weir::upstream::process::shim::run().unwrap_or_else(|| with_enough_stack(weir::cli::run))
}

/// The main thread's stack is as large as the shell says (`ulimit -s`), any other's as large as its program says.
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
