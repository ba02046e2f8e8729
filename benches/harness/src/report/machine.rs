//! Machine of a run: processor, memory, kernel, and the versions of the programs.

use std::fmt;
use std::fs;
use std::process::Command;

use crate::subject::Programs;

/// Description of a machine.
pub(crate) struct Machine {
    processors: usize,
    model: String,
    memory_gib: f64,
    kernel: String,
    versions: Vec<String>,
    load: String,
}

impl Machine {
    /// Describes this machine.
    pub(crate) fn here(programs: &Programs) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            let value = line.and_then(|line| line.split(':').nth(1));
            value.unwrap_or("unknown").trim().to_owned()
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let kib = memory.split(' ').next().and_then(|digits| digits.parse::<f64>().ok());
        let python = |part: &str, package: &str| {
            let code = format!(
                "import importlib.metadata as m; print('{package}', m.version('{package}'))"
            );
            first_line(
                Command::new(programs.parts.join(part).join("bin/python")).arg("-c").arg(code),
            )
        };
        let versions = [
            first_line(Command::new(&programs.weir).arg("--version")),
            first_line(Command::new(programs.parts.join("bin/nginx")).arg("-v")),
            python("mcp2", "fastmcp"),
            python("contextforge", "mcp-contextforge-gateway"),
            first_line(Command::new("rustc").arg("--version")),
        ];
        Self {
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            model: field(&read("/proc/cpuinfo"), "model name"),
            memory_gib: kib.unwrap_or(0.0) / f64::from(1 << 20),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            versions: versions.into_iter().flatten().collect(),
            load: read("/proc/loadavg").split(' ').next().unwrap_or("?").to_owned(),
        }
    }
}

/// First line of a program's output.
fn first_line(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    let text = String::from_utf8_lossy(&text);
    text.lines().next().filter(|_| output.status.success()).map(str::to_owned)
}

impl fmt::Display for Machine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { processors, model, memory_gib, kernel, versions, load } = self;
        write!(
            out,
            "{processors} processors ({model}), {memory_gib:.0} GiB, Linux {kernel}, load before the run {load}; {}.",
            versions.join("; ")
        )
    }
}
