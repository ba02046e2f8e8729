//! Resource usage of the process, as reported by the kernel.
//!
//! Invariant: values that the kernel does not report are omitted; on systems other than Linux that
//! is all of them.

use std::fs;

use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

/// Resource usage of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Memory, in bytes.
    pub memory: u64,
    /// Processor time, in seconds.
    pub cpu_seconds: f64,
    /// Open file descriptors.
    pub files: u64,
}

/// Resource usage and limits of the process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Process {
    pub(super) usage: Usage,
    /// Address space, in bytes.
    pub(super) address_space: u64,
    /// Limit on open file descriptors.
    pub(super) max_files: Option<u64>,
}

impl Process {
    /// Reads the current usage.
    pub(super) fn read() -> Option<Self> {
        let statm = fs::read_to_string("/proc/self/statm").ok()?;
        let mut pages = statm.split(' ').map_while(|it| it.trim().parse::<u64>().ok());
        let page = rustix::param::page_size() as u64;
        let (address_space, memory) = (pages.next()? * page, pages.next()? * page);
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The process name in parentheses may contain anything; the fields follow behind it.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut ticks = fields.split_whitespace().skip(11).map_while(|it| it.parse::<u64>().ok());
        let ticks = ticks.next()? + ticks.next()?;
        let cpu_seconds = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        // The descriptor that reads the folder is not counted.
        let files = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as u64;
        let max_files = getrlimit(Resource::Nofile).current;
        Some(Self { usage: Usage { memory, cpu_seconds, files }, address_space, max_files })
    }
}
