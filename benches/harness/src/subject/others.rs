//! All subjects except Weir, and their configuration.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Programs, Running, STARTUP, free_address, running};
use crate::fixture;
use crate::process::Process;

// === The fixture ===

/// The servers behind the gateways, which run until this is dropped.
pub(crate) struct Fixture {
    _process: Process,
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Fixture {
    /// Starts the fixture, and waits until it writes its addresses.
    pub(crate) fn start(settings: &fixture::Settings, folder: &Path) -> io::Result<Self> {
        let mut command = fixture_command(settings)?;
        command.stdout(Stdio::piped());
        let mut process = Process::start(command, &folder.join("fixture-errors"))?;
        let output = process.output().ok_or_else(|| io::Error::other("no output"))?;
        let mut lines = BufReader::new(output).lines();
        let mut addresses = Vec::new();
        while addresses.len() < settings.servers {
            let line = lines.next().ok_or_else(|| io::Error::other("the fixture ended"))??;
            addresses.push(line.parse().map_err(io::Error::other)?);
        }
        Ok(Self { _process: process, addresses })
    }
}

/// Command that runs this program as the fixture.
fn fixture_command(settings: &fixture::Settings) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(fixture_arguments(settings));
    Ok(command)
}

pub(super) fn fixture_arguments(settings: &fixture::Settings) -> Vec<String> {
    let mut arguments = vec!["fixture".to_owned()];
    let mut add = |name: &str, value: usize| arguments.push(format!("--{name}={value}"));
    add("servers", settings.servers);
    add("prompts", settings.prompts);
    add("tools", settings.tools);
    add("resources", settings.resources);
    add("bytes", settings.bytes);
    add("page", settings.page);
    add("delay", settings.delay as usize);
    add("threads", settings.threads);
    for (flag, is_set) in [("--stdio", settings.stdio), ("--escapes", settings.escapes)] {
        if is_set {
            arguments.push(flag.into());
        }
    }
    arguments
}

// === The gateways ===

pub(super) fn nginx(programs: &Programs, to: SocketAddr, folder: &Path) -> io::Result<Running> {
    let address = free_address();
    let text = std::fs::read_to_string(programs.gateways.join("nginx.conf"))?;
    let text = text
        .replace("@LISTEN@", &address.to_string())
        .replace("@TO@", &to.to_string())
        .replace("@FOLDER@", &folder.display().to_string());
    let file = folder.join("nginx.conf");
    std::fs::write(&file, text)?;
    let mut command = Command::new(programs.parts.join("bin/nginx"));
    command.arg("-e").arg("stderr").arg("-p").arg(folder).arg("-c").arg(file);
    Ok(running(address, Some(Process::start(command, &folder.join("errors"))?), folder))
}

pub(super) fn floor(to: SocketAddr, folder: &Path) -> io::Result<Running> {
    let address = free_address();
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("forward").arg(format!("--listen={address}")).arg(format!("--to={to}"));
    Ok(running(address, Some(Process::start(command, &folder.join("errors"))?), folder))
}

pub(super) fn fastmcp(programs: &Programs, to: SocketAddr, folder: &Path) -> io::Result<Running> {
    let address = free_address();
    let mut command = Command::new(programs.parts.join("mcp2/bin/python"));
    command.arg(programs.gateways.join("fastmcp_proxy.py"));
    command.arg(address.port().to_string()).arg(format!("http://{to}/mcp"));
    command.stdout(Stdio::null()).current_dir(folder);
    Ok(running(address, Some(Process::start(command, &folder.join("errors"))?), folder))
}

pub(super) async fn contextforge(
    programs: &Programs,
    to: SocketAddr,
    folder: &Path,
) -> io::Result<Running> {
    let address = free_address();
    let mut command = Command::new(programs.parts.join("contextforge/bin/python"));
    command.arg(programs.gateways.join("contextforge.py"));
    command.arg(address.port().to_string()).arg(format!("http://{to}/mcp")).arg(folder);
    command.stdout(Stdio::piped()).current_dir(folder);
    let errors = folder.join("errors");
    let mut process = Process::start(command, &errors)?;
    let output = process.output().ok_or_else(|| io::Error::other("no output"))?;
    // On a thread of its own, since it takes long and must not block other tasks.
    let ready = tokio::task::spawn_blocking(move || {
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        lines.find_map(|line| line.strip_prefix("ready ").map(str::to_owned))
    });
    let ready = tokio::time::timeout(3 * STARTUP + Duration::from_secs(30), ready).await;
    let key = ready.map_err(io::Error::other)?.map_err(io::Error::other)?;
    let Some(key) = key else {
        let line = std::fs::read_to_string(errors).unwrap_or_default();
        return Err(io::Error::other(line.lines().last().unwrap_or("it ended").to_owned()));
    };
    let path = "/mcp/".to_owned();
    Ok(Running { path, keys: vec![key], ..running(address, Some(process), folder) })
}
