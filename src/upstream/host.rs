//! The real [`Dial`]: TCP, TLS and child processes of this machine.
//!
//! Promises: connecting takes a bounded time; a child gets exactly the environment that it was given,
//! leads a process group of its own, and does not outlive us in an orderly end. The errors are words
//! for the operator.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::Uri;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use super::dial::{Child, Command, Dial, Process, Stream};

/// How long each address of a server may take to accept.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a name may take to be looked up.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How many addresses of a server are tried.
const MAX_ADDRESSES: usize = 4;

/// Connects and starts processes on this machine.
#[derive(Default)]
pub struct Host {
    /// Made when the first server with TLS is connected to: reading the system's roots takes a while.
    tls: OnceLock<Result<TlsConnector, String>>,
}

impl Host {
    /// The machine that Weir runs on.
    pub fn new() -> Self {
        Self::default()
    }

    fn tls(&self) -> io::Result<&TlsConnector> {
        self.tls.get_or_init(tls_connector).as_ref().map_err(|text| io::Error::other(text.clone()))
    }

    async fn open(&self, url: &Uri) -> io::Result<Box<dyn Stream>> {
        let host = url.host().ok_or_else(|| io::Error::other("the URL names no host"))?;
        let is_tls = url.scheme_str() == Some("https");
        let port = url.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        // The brackets of an IPv6 address belong to the URL.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let stream = connect(host, port).await?;
        if !is_tls {
            return Ok(Box::new(stream));
        }
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let handshake = self.tls()?.connect(name, stream);
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake took too long");
        let stream = timeout(HANDSHAKE_TIMEOUT, handshake).await.map_err(late)?;
        let stream = stream.map_err(|error| io::Error::other(format!("TLS: {error}")))?;
        Ok(Box::new(stream))
    }
}

impl Dial for Host {
    fn connect<'a>(&'a self, url: &'a Uri) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        self.open(url).boxed()
    }

    fn spawn(&self, command: &Command) -> io::Result<Child> {
        let mut process = tokio::process::Command::new(&command.program);
        process
            .args(&command.args)
            .env_clear()
            .envs(command.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Signals from our terminal are ours to handle; and what the child starts ends with it.
            .process_group(0)
            .kill_on_drop(true);
        if let Some(cwd) = &command.cwd {
            if !cwd.is_dir() {
                return Err(io::Error::other(format!("no such folder: {}", cwd.display())));
            }
            process.current_dir(cwd);
        }
        let mut child = process.spawn().map_err(|error| explain(&command.program, &error))?;
        let missing = || io::Error::other("a pipe to the process is missing");
        let stdin = Box::new(child.stdin.take().ok_or_else(missing)?);
        let stdout = Box::new(child.stdout.take().ok_or_else(missing)?);
        let stderr = Box::new(child.stderr.take().ok_or_else(missing)?);
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let process = Box::new(HostProcess { child, group });
        Ok(Child { stdin, stdout, stderr: Some(stderr), process })
    }
}

async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let late = |what: &'static str| move |_| io::Error::new(io::ErrorKind::TimedOut, what);
    let lookup = timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host((host, port))).await;
    let addresses = lookup.map_err(late("looking its name up took too long"))?;
    let mut last = io::Error::other("its name has no address");
    for address in addresses?.take(MAX_ADDRESSES) {
        let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
        match connected.map_err(late("connecting took too long")).flatten() {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn tls_connector() -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err("TLS: this machine has no root certificates".into());
    }
    let provider = Arc::new(crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS: {error}"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Why a program cannot be started, in words.
fn explain(program: &str, error: &io::Error) -> io::Error {
    let text = match error.kind() {
        io::ErrorKind::NotFound if program.contains('/') => format!("no such program: {program}"),
        io::ErrorKind::NotFound => format!("no program `{program}` in PATH"),
        io::ErrorKind::PermissionDenied => format!("`{program}` may not be executed"),
        _ => format!("`{program}`: {error}"),
    };
    io::Error::new(error.kind(), text)
}

// === HostProcess ===

/// A process that leads its own group.
struct HostProcess {
    child: tokio::process::Child,
    /// `None` once nothing of it is left to be signalled.
    group: Option<Pid>,
}

impl HostProcess {
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // An error means that the group is gone.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Process for HostProcess {
    fn wait(&mut self) -> BoxFuture<'_, String> {
        async {
            match self.child.wait().await {
                Ok(status) => describe(status),
                Err(error) => format!("cannot be waited for: {error}"),
            }
        }
        .boxed()
    }

    fn terminate(&mut self) {
        self.signal(Signal::TERM);
    }

    fn kill(&mut self) {
        self.signal(Signal::KILL);
        // Once its leader has been waited for, the group's number may be given to others: it is
        // signalled right after that, and then never again.
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            self.group = None;
        }
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        if self.group.is_some() {
            self.kill();
        }
    }
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".into(),
    }
}
