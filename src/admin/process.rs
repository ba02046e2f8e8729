//! What the process takes of its machine, as the kernel tells it.
//!
//! Promise: what is not told here is left out, not guessed; on other systems than Linux that is all of it.
//!
//! Knows nothing of: Weir.

use std::fs;

use rustix::process::{Resource, getrlimit};

/// What the process takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Process {
    /// Memory that is in use, in bytes.
    pub(super) resident: u64,
    /// Address space, in bytes.
    pub(super) size: u64,
    /// Processor time, in seconds.
    pub(super) cpu: f64,
    /// Open file descriptors.
    pub(super) files: u64,
    /// How many there may be.
    pub(super) max_files: Option<u64>,
}

impl Process {
    /// What it takes at this moment.
    pub(super) fn look() -> Option<Self> {
        let statm = fs::read_to_string("/proc/self/statm").ok()?;
        let mut pages = statm.split(' ').map_while(|it| it.trim().parse::<u64>().ok());
        let page = rustix::param::page_size() as u64;
        let (size, resident) = (pages.next()? * page, pages.next()? * page);
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The name, in brackets, may hold anything; what counts stands behind it.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut ticks = fields.split_whitespace().skip(11).map_while(|it| it.parse::<u64>().ok());
        let ticks = ticks.next()? + ticks.next()?;
        let cpu = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        // The one that reads the folder is not counted.
        let files = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as u64;
        let max_files = getrlimit(Resource::Nofile).current;
        Some(Self { resident, size, cpu, files, max_files })
    }
}
