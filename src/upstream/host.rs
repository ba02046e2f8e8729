//! The real [`Dial`]: TCP, TLS and child processes of this machine.
//!
//! Promises: connecting takes a bounded time; a child gets exactly the environment that it was given,
//! leads a process group of its own, and does not outlive us: not in an orderly end, and on Linux in no other.
//! The errors are words for the operator.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::Uri;
use rustix::net::sockopt;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use super::dial::{Child, Command, Dial, Process, Stream};
use super::{shim, spawner};

/// How long a name may take to be looked up.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// When a silent connection is probed first, how often then, and how many times in vain. Less than a
/// minute at first: what stands in between forgets idle connections after a few.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(45);
const KEEP_ALIVE_AGAIN: Duration = Duration::from_secs(15);
const KEEP_ALIVE_TRIES: u32 = 3;
/// How many addresses of a server are tried.
const MAX_ADDRESSES: usize = 4;

/// Connects and starts processes on this machine.
#[derive(Default)]
pub struct Host {
    /// Made when the first server with TLS is connected to: reading the system's roots takes a while.
    tls: OnceLock<Result<TlsConnector, String>>,
    /// Whether this process is the `weir` program, which knows how to become another.
    has_shim: bool,
}

impl Host {
    /// The machine that Weir runs on.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, for the `weir` program itself: on Linux its children do not outlive it, however it ends.
    pub fn of_the_program() -> Self {
        Self { has_shim: cfg!(target_os = "linux"), ..Self::default() }
    }

    fn tls(&self) -> io::Result<&TlsConnector> {
        self.tls.get_or_init(tls_connector).as_ref().map_err(|text| io::Error::other(text.clone()))
    }

    async fn open(&self, url: &Uri, time: Duration) -> io::Result<Box<dyn Stream>> {
        let host = url.host().ok_or_else(|| io::Error::other("the URL names no host"))?;
        let is_tls = url.scheme_str() == Some("https");
        let port = url.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        // The brackets of an IPv6 address belong to the URL.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let unreachable =
            |error: io::Error| io::Error::new(error.kind(), format!("{host}:{port}: {error}"));
        let stream = connect(host, port, time).await.map_err(unreachable)?;
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
    fn connect<'a>(
        &'a self,
        url: &'a Uri,
        time: Duration,
    ) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        self.open(url, time).boxed()
    }

    fn spawn(&self, command: &Command) -> io::Result<Child> {
        let mut process = match self.has_shim {
            false => tokio::process::Command::new(&command.program),
            true => {
                let mut process = tokio::process::Command::new(shim::SELF);
                process.arg(shim::MARK).arg(std::process::id().to_string()).arg(&command.program);
                process
            }
        };
        process
            .args(&command.args)
            .env_clear()
            .envs(command.env.iter().map(|(name, value)| (name, value.expose())))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Signals from our terminal are ours to handle; and what the child starts ends with it.
            .process_group(0)
            .kill_on_drop(true);
        if let Some(cwd) = &command.cwd {
            if !cwd.is_dir() {
                return Err(io::Error::other(
                    "the folder that `cwd` names is not there; make it, or correct `cwd`",
                ));
            }
            // Else a folder that may not be entered would be put down to the program.
            if let Err(error) = std::fs::metadata(cwd.join(".")) {
                let text = format!(
                    "the folder that `cwd` names cannot be entered: {error}; check its permissions"
                );
                return Err(io::Error::new(error.kind(), text));
            }
            process.current_dir(cwd);
        }
        let started = match self.has_shim {
            false => process.spawn(),
            // The shim can always be started, and what it says then would come late.
            true => can_be_started(command).and_then(|()| spawner::spawn(process)),
        };
        let mut child = started.map_err(|error| explain(command, &error))?;
        let missing = || io::Error::other("a pipe to the process is missing");
        let stdin = Box::new(child.stdin.take().ok_or_else(missing)?);
        let stdout = Box::new(child.stdout.take().ok_or_else(missing)?);
        let stderr = Box::new(child.stderr.take().ok_or_else(missing)?);
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let process = Box::new(HostProcess { child, group });
        Ok(Child { stdin, stdout, stderr: Some(stderr), process })
    }
}

async fn connect(host: &str, port: u16, time: Duration) -> io::Result<TcpStream> {
    let late = |what: &'static str| move |_| io::Error::new(io::ErrorKind::TimedOut, what);
    let lookup = timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host((host, port))).await;
    let addresses = lookup.map_err(late("looking its name up took too long"))?;
    let mut last = io::Error::other("its name has no address");
    for address in addresses?.take(MAX_ADDRESSES) {
        let connected = timeout(time, TcpStream::connect(address)).await;
        match connected.map_err(late("connecting took too long")).flatten() {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                if let Err(error) = keep_alive(&stream) {
                    tracing::debug!(%error, "silent connections are not probed here");
                }
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Lets the system notice when the other side of a silent connection is gone, and remind those on the way
/// that the connection is in use: an event stream may carry nothing for hours.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEP_ALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE_AGAIN)?;
    sockopt::set_tcp_keepcnt(stream, KEEP_ALIVE_TRIES)?;
    Ok(())
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
fn explain(command: &Command, error: &io::Error) -> io::Error {
    let (program, shown) = (&command.program, &command.shown);
    let text = match error.kind() {
        io::ErrorKind::NotFound if program.contains(' ') => {
            format!("no program `{shown}`: what follows the program's name goes into `args`")
        }
        io::ErrorKind::NotFound if program.contains('/') => {
            format!("no such program: {shown}; install it, or correct `command`")
        }
        io::ErrorKind::NotFound => {
            format!(
                "no program `{shown}` in PATH; install it, or write its whole path as `command`"
            )
        }
        // The system says this, too, if a folder of PATH may not be entered and no other has the program.
        io::ErrorKind::PermissionDenied if !program.contains('/') && !is_in_path(program) => {
            return explain(command, &io::ErrorKind::NotFound.into());
        }
        io::ErrorKind::PermissionDenied => {
            format!("`{shown}` may not be executed; check its permissions")
        }
        _ => format!("`{shown}`: {error}"),
    };
    io::Error::new(error.kind(), text)
}

/// Looks for a child's program as the system would.
fn can_be_started(command: &Command) -> io::Result<()> {
    let look = |path: &Path| {
        let found = std::fs::metadata(path)?;
        match found.is_file() && found.permissions().mode() & 0o111 != 0 {
            true => Ok(()),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    };
    let cwd = command.cwd.as_deref().unwrap_or(Path::new(""));
    if command.program.contains('/') {
        return look(&cwd.join(&command.program));
    }
    let path = command.env.iter().rfind(|(name, _)| name == "PATH");
    let path = path.map_or(USUAL_PATH, |(_, path)| path.expose());
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for folder in std::env::split_paths(path) {
        match look(&cwd.join(folder).join(&command.program)) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => last = error,
            Err(_) => {}
        }
    }
    Err(last)
}

/// Where programs are looked for where there is no PATH.
const USUAL_PATH: &str = "/bin:/usr/bin";

/// Whether a folder of PATH that can be looked into holds a file of this name.
fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
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
    fn id(&self) -> Option<u32> {
        self.child.id()
    }

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

#[cfg(test)]
mod tests {
    //! With real processes, real sockets and a real clock.

    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    use crate::mcp::kind::Kind;
    use crate::upstream::testing::{Over, call, payload, settings};
    use crate::upstream::{Source, Status, Upstream};

    fn sh(script: &str) -> Command {
        let path = std::env::var("PATH").expect("a path");
        Command {
            program: "sh".into(),
            shown: "sh".into(),
            args: vec!["-c".into(), script.into()],
            env: vec![("PATH".into(), path.into()), ("GIVEN".into(), "1".into())],
            cwd: None,
        }
    }

    async fn output(child: &mut Child) -> String {
        let mut text = String::new();
        child.stdout.read_to_string(&mut text).await.expect("a pipe");
        text
    }

    #[tokio::test]
    async fn a_child_gets_its_environment_and_no_more() {
        let mut child = Host::new().spawn(&sh("env | cut -d= -f1 | sort; exit 3")).expect("sh");
        let names = output(&mut child).await;
        let inherited = ["CARGO", "HOME", "USER"].map(|name| names.lines().any(|it| it == name));
        assert!(names.contains("GIVEN") && inherited == [false; 3], "{names}");
        assert_eq!(child.process.wait().await, "exited with code 3");
    }

    #[tokio::test]
    async fn what_a_child_has_started_goes_with_it() {
        // The grandchild holds standard output open until it dies.
        let mut child = Host::new().spawn(&sh("sleep 1000 & echo started; wait")).expect("sh");
        let mut started = [0; 8];
        child.stdout.read_exact(&mut started).await.expect("a pipe");
        child.process.terminate();
        assert_eq!(output(&mut child).await, "");
        assert_eq!(child.process.wait().await, "was killed by signal 15");

        let mut child = Host::new().spawn(&sh("sleep 1000 & echo started; wait")).expect("sh");
        child.stdout.read_exact(&mut started).await.expect("a pipe");
        drop(child.process);
        let mut rest = Vec::new();
        child.stdout.read_to_end(&mut rest).await.expect("a pipe");
    }

    #[tokio::test]
    async fn why_a_program_cannot_be_started_is_said_in_words() {
        let refusal = |change: fn(&mut Command)| {
            let mut command = Command { shown: "${SH}".into(), ..sh("") };
            change(&mut command);
            Host::new().spawn(&command).map(|_| ()).expect_err("no such thing").to_string()
        };
        let missing = refusal(|command| command.program = "no-such-program".into());
        assert_eq!(
            missing,
            "no program `${SH}` in PATH; install it, or write its whole path as `command`"
        );
        let missing = refusal(|command| command.program = "/no/such".into());
        assert_eq!(missing, "no such program: ${SH}; install it, or correct `command`");
        let line = refusal(|command| command.program = "no-such --option".into());
        assert_eq!(line, "no program `${SH}`: what follows the program's name goes into `args`");
        let forbidden = refusal(|command| command.program = "/etc/passwd".into());
        assert_eq!(forbidden, "`${SH}` may not be executed; check its permissions");
        let nowhere = refusal(|command| command.cwd = Some("/no/such".into()));
        assert_eq!(nowhere, "the folder that `cwd` names is not there; make it, or correct `cwd`");
        let shown = format!("{:?}", sh("hunter2"));
        assert!(shown.contains("2 of them") && !shown.contains("hunter2"), "{shown}");
    }

    #[tokio::test]
    async fn a_server_is_connected_to_by_address() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let url: Uri = format!("http://127.0.0.1:{port}/mcp").parse().expect("a URL");
        let host = Host::new();
        let (ours, theirs) = tokio::join!(host.connect(&url, CONNECT), listener.accept());
        ours.expect("connected").write_all(b"x").await.expect("written");
        let mut read = [0];
        theirs.expect("accepted").0.read_exact(&mut read).await.expect("read");
        drop(listener);
        let refused = host.connect(&url, CONNECT).await.map(|_| ()).expect_err("nobody listens");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn a_silent_connection_is_probed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let stream = super::connect("127.0.0.1", port, CONNECT).await.expect("connected");
        assert!(sockopt::socket_keepalive(&stream).expect("an option"));
        assert_eq!(sockopt::tcp_keepidle(&stream).expect("an option"), KEEP_ALIVE_AFTER);
    }

    #[tokio::test]
    async fn a_server_without_tls_is_an_error_in_words() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let url: Uri = format!("https://127.0.0.1:{port}/mcp").parse().expect("a URL");
        let host = Host::new();
        let hang_up = async { drop(listener.accept().await) };
        let (refused, ()) = tokio::join!(host.connect(&url, CONNECT), hang_up);
        let refused = refused.map(|_| ()).expect_err("no TLS there").to_string();
        assert!(refused.starts_with("TLS: "), "{refused}");
    }

    const CONNECT: Duration = Duration::from_secs(2);

    /// A legacy server in a few lines of shell: it answers by method, under the id that was sent.
    const SERVER: &str = r#"
        echo "a banner"
        while read -r line; do
            id=${line#*\"id\":}; id=${id%%,*}
            case $line in
                *'"initialize"'*) result='"result":{"protocolVersion":"2025-06-18","capabilities":{"prompts":{},"tools":{}}}' ;;
                *'"prompts/list"'*) result='"result":{"prompts":[{"name":"hello"}]}' ;;
                *'"tools/call"'*) result='"result":{"content":[],"pid":'$$'}' ;;
                *'"notifications/'*) continue ;;
                *) result='"error":{"code":-32601,"message":"no"}' ;;
            esac
            echo '{"jsonrpc":"2.0","id":'$id','$result'}'
        done
    "#;

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn connecting_takes_no_longer_than_it_may() {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind(([127, 0, 0, 1], 0).into()).expect("a port");
        // The kernel takes one or two that nobody accepts; who comes then hears nothing.
        let listener = socket.listen(1).expect("it listens");
        let port = listener.local_addr().expect("an address").port();
        let (mut taken, time) = (Vec::new(), Duration::from_millis(300));
        let (refused, took) = loop {
            let began = std::time::Instant::now();
            match super::connect("127.0.0.1", port, time).await {
                Ok(stream) => taken.push(stream),
                Err(error) => break (error, began.elapsed()),
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut, "{refused}");
        assert!((1..9).contains(&taken.len()) && took >= time && took < 10 * time, "{took:?}");
    }

    #[tokio::test]
    async fn a_real_child_is_an_upstream() {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let mut settings = settings(Over::Stdio);
        settings.source = Source::Process(sh(SERVER));
        let upstream = {
            let (dial, budget) = (Arc::new(Host::new()), crate::budget::Budget::new(1 << 20));
            Upstream::start(settings, dial, &budget, &tasks, stop.clone())
        };
        let mut status = upstream.status();
        let settled = status.wait_for(|status| !matches!(status, Status::Starting)).await;
        assert!(matches!(&*settled.expect("alive"), Status::Up(_)));
        let listing = upstream.list(Kind::Prompt).await.expect("a list");
        assert_eq!(&*listing.items[0].key, "hello");
        let asked = call(crate::mcp::revision::Revision::NEWEST);
        let reply = payload(upstream.call(asked).await.expect("a reply")).await;
        assert!(reply.starts_with(r#"{"content":[],"pid":"#), "{reply}");
        stop.cancel();
        tasks.close();
        // Its standard input is closed, so it leaves by itself.
        timeout(Duration::from_secs(2), tasks.wait()).await.expect("nothing is left over");
    }
}
