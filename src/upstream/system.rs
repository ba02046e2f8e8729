//! The real [`Dial`]: TCP, TLS and child processes of this machine.
//!
//! Promises: connecting takes a bounded time; a child gets exactly the environment that it was given,
//! leads a process group of its own, and does not outlive us: not in an orderly end, and on Linux in no other. What it
//! has started ends with it; on Linux also what has left its group.
//! The errors are words for the operator.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::Uri;
use rustix::net::sockopt;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use super::connect::{Child, Command, Dial, Number, Process, Stream};
use crate::regular_file;
#[cfg(target_os = "linux")]
use crate::upstream::process::reaper;
use crate::upstream::process::{shim, spawner};

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
    names: Names,
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
        let addresses = self.look_up(host, port).await.map_err(unreachable)?;
        let stream = connect(addresses, time).await.map_err(unreachable)?;
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

    /// The addresses of a name, asked for anew each time: what was true of an earlier connection need not be.
    async fn look_up(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let found = timeout(LOOKUP_TIMEOUT, (self.names.0)(host.to_owned(), port)).await;
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "looking its name up took too long");
        found.map_err(late).flatten()
    }
}

/// Who knows the addresses of names: the system. Tests put their own in its place.
struct Names(Box<Lookup>);

type Lookup = dyn Fn(String, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync;

impl Default for Names {
    fn default() -> Self {
        let system = async |host: String, port| {
            Ok(tokio::net::lookup_host((host, port)).await?.take(MAX_ADDRESSES).collect())
        };
        Self(Box::new(move |host, port| system(host, port).boxed()))
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
                process.arg(shim::KEEP).arg(std::process::id().to_string()).arg(&command.program);
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
            // A keeper has others to see to before it may end.
            .kill_on_drop(!self.has_shim);
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
        let process: Box<dyn Process> = match self.has_shim {
            #[cfg(target_os = "linux")]
            true => Box::new(Kept { keeper: child }),
            _ => Box::new(Led::new(child)),
        };
        Ok(Child { stdin, stdout, stderr: Some(stderr), process })
    }
}

async fn connect(addresses: Vec<SocketAddr>, time: Duration) -> io::Result<TcpStream> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "connecting took too long");
    let mut last = io::Error::other("its name has no address");
    for address in addresses {
        let connected = timeout(time, TcpStream::connect(address)).await;
        match connected.map_err(late).flatten() {
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
    // What reads it would wait for a named pipe.
    if let Some(path) = std::env::var_os("SSL_CERT_FILE")
        && let Err(error) = regular_file::open(Path::new(&path))
        && error.kind() == io::ErrorKind::InvalidInput
    {
        return Err(format!("TLS: the file that SSL_CERT_FILE names cannot be read: {error}"));
    }
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

// === Led ===

/// A process that leads its own group.
struct Led {
    child: tokio::process::Child,
    /// `None` once nothing of it is left to be signalled.
    group: Option<Pid>,
}

impl Led {
    fn new(child: tokio::process::Child) -> Self {
        Self { group: child.id().and_then(number), child }
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // An error means that the group is gone.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Process for Led {
    fn id(&self) -> Option<Number> {
        self.child.id().map(Number::Own)
    }

    fn wait(&mut self) -> BoxFuture<'_, String> {
        end_of(&mut self.child)
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

impl Drop for Led {
    fn drop(&mut self) {
        if self.group.is_some() {
            self.kill();
        }
    }
}

// === Kept ===

/// A process behind a keeper, which ends what there is to be ended, and then as the process did.
#[cfg(target_os = "linux")]
struct Kept {
    keeper: tokio::process::Child,
}

#[cfg(target_os = "linux")]
impl Kept {
    fn tell(&self, signal: Signal) {
        // There is no number once it has been waited for; before that nobody else can have it.
        if let Some(keeper) = self.keeper.id().and_then(number) {
            let _ = kill_process(keeper, signal);
        }
    }
}

#[cfg(target_os = "linux")]
impl Process for Kept {
    fn id(&self) -> Option<Number> {
        self.keeper.id().map(Number::Keeper)
    }

    fn wait(&mut self) -> BoxFuture<'_, String> {
        end_of(&mut self.keeper)
    }

    fn terminate(&mut self) {
        self.tell(Signal::TERM);
    }

    fn kill(&mut self) {
        self.tell(reaper::END_ALL);
        // Should somebody have stopped it.
        self.tell(Signal::CONT);
    }
}

#[cfg(target_os = "linux")]
impl Drop for Kept {
    fn drop(&mut self) {
        self.kill();
    }
}

fn number(id: u32) -> Option<Pid> {
    i32::try_from(id).ok().and_then(Pid::from_raw)
}

fn end_of(child: &mut tokio::process::Child) -> BoxFuture<'_, String> {
    async {
        match child.wait().await {
            Ok(status) => describe(status),
            Err(error) => format!("cannot be waited for: {error}"),
        }
    }
    .boxed()
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
    async fn a_program_is_started_without_a_shell() {
        let text = "$(id) `id` $HOME ; id * > x";
        let args = vec!["%s".into(), text.into()];
        let printf = Command { program: "printf".into(), args, ..sh("") };
        let mut child = Host::new().spawn(&printf).expect("printf");
        assert_eq!(output(&mut child).await, text);
        assert_eq!(child.process.wait().await, "exited with code 0");
    }

    /// A host for which this looks names up.
    fn knowing<F>(names: impl Fn() -> F + Send + Sync + 'static) -> Host
    where
        F: Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    {
        Host { names: Names(Box::new(move |_, _| names().boxed())), ..Host::default() }
    }

    /// Serves one connection after the other with its own name.
    async fn served(name: &'static str, tasks: &TaskTracker) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        tasks.spawn(async move {
            let connections = TaskTracker::new();
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                let service = hyper::service::service_fn(move |_| {
                    let body = http_body_util::Full::new(bytes::Bytes::from(name));
                    let answer = Ok::<_, std::convert::Infallible>(hyper::Response::new(body));
                    std::future::ready(answer)
                });
                let server = hyper::server::conn::http1::Builder::new();
                let stream = hyper_util::rt::TokioIo::new(stream);
                connections.spawn(server.serve_connection(stream, service));
            }
        });
        address
    }

    #[tokio::test]
    async fn f12_a_name_is_looked_up_for_each_connection_and_a_kept_one_needs_none() {
        use crate::upstream::message::Sent;
        use crate::upstream::transport::http_pool::{Arrival, NoResponse, Pool};
        use std::sync::Mutex;

        let servers = TaskTracker::new();
        let (first, second) = (served("first", &servers).await, served("second", &servers).await);
        // Where the name leads, if anybody knows, and how often that was asked.
        let known = Arc::new(Mutex::new((Some(first), 0)));
        let asked = Arc::clone(&known);
        let host = knowing(move || {
            let mut known = asked.lock().expect("nobody panics");
            known.1 += 1;
            let address = known.0.ok_or_else(|| io::Error::other("nobody answers"));
            async move { address.map(|it| vec![it]) }
        });
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let url = Uri::from_static("http://upstream.test:1/");
        let pool = Pool::new(Arc::new(host), url, 1, CONNECT, tasks, stop.clone());
        let ask = async || {
            let request = hyper::Request::get("/").header("host", "upstream.test");
            let request = request.body(http_body_util::Full::default()).expect("a request");
            Ok::<_, NoResponse>(pool.send(request, &Sent::default()).await?.into_body())
        };
        let read = async |mut body: Arrival| {
            let piece = body.chunk().await.expect("a body").expect("whole");
            assert!(body.chunk().await.is_none());
            String::from_utf8(piece.to_vec()).expect("text")
        };
        assert_eq!(read(ask().await.expect("a way")).await, "first");
        known.lock().expect("nobody panics").0 = None;
        // The connection that there is goes on while nobody knows the name.
        for _ in 0..100 {
            assert_eq!(read(ask().await.expect("a way")).await, "first");
        }
        assert_eq!(known.lock().expect("nobody panics").1, 1);
        // It is in use, so this takes another one.
        let held = ask().await.expect("a way");
        let error = ask().await.err().expect("nobody knows the way");
        assert!(
            matches!(&error, NoResponse::Unsent(text) if text.contains("nobody answers")),
            "{error:?}"
        );
        known.lock().expect("nobody panics").0 = Some(second);
        assert_eq!(read(ask().await.expect("a way")).await, "second");
        assert_eq!(read(held).await, "first");
        assert_eq!(known.lock().expect("nobody panics").1, 3);
        stop.cancel();
    }

    #[tokio::test(start_paused = true)]
    async fn f12_a_name_that_nobody_knows_is_given_up_after_five_seconds() {
        let host = knowing(std::future::pending);
        let begin = tokio::time::Instant::now();
        let url = Uri::from_static("http://upstream.test/mcp");
        let error = host.connect(&url, CONNECT).await.err().expect("nobody knows it");
        assert_eq!(error.to_string(), "upstream.test:80: looking its name up took too long");
        assert_eq!(begin.elapsed(), Duration::from_secs(5));
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
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let stream = super::connect(vec![address], CONNECT).await.expect("connected");
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
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            match connect(vec![address], time).await {
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
            let (dial, budget) =
                (Arc::new(Host::new()), crate::memory_budget::Budget::new(1 << 20));
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
