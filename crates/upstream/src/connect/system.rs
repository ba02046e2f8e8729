//! System implementation of [`Connect`]: TCP, TLS and child processes of this machine.
//!
//! Invariants: connecting takes a bounded time. Errors are texts for the operator.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::Uri;
use hyper_util::client::proxy::matcher::Intercept;
use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::connect::egress::has_valid_port;
use crate::connect::tls::protect;
use crate::connect::{Child, ChildCommand, Connect, Destination, LoginPath, TraceSink, proxy, tls};
use crate::process::deadline::Deadline;
use crate::process::login_shell::{ASKED_VARIABLE, LoginShell};
use crate::process::search_path::{find_program, is_of_system};
use crate::process::start::{ControllingTerminal, start};
use weir_base::net::allowed_addresses::{AllowedAddresses, NOT_PUBLIC_ADDRESS, is_loopback_host};
use weir_base::net::http_connection::ByteStream;

/// Time limit of a DNS lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of the lookup of a name that a proxy looks up as well. Where only the proxy can look
/// names up, each connection takes so much longer.
const PROXIED_LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// TCP keep-alive: time until the first probe, interval and number of probes. Less than a minute at
/// first: middleboxes drop idle connections after a few minutes.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(45);
const KEEP_ALIVE_AGAIN: Duration = Duration::from_secs(15);
const KEEP_ALIVE_TRIES: u32 = 3;
/// Maximum addresses of a server that are tried.
const MAX_ADDRESSES: usize = 4;

/// Opens connections and starts processes on this machine.
#[derive(Default)]
pub struct System {
    /// Created with the first TLS connection: reading the system's root certificates takes a while.
    tls: OnceLock<Result<TlsConnector, String>>,
    /// Whether this process is the `weir` program, which contains the exec shim.
    has_shim: bool,
    /// Whether a client has started this process.
    is_started_by_client: bool,
    login_shell: Option<LoginShell>,
    trace_sink: Option<Arc<dyn TraceSink>>,
    resolver: Resolver,
}

impl System {
    /// Creates an instance without the exec shim.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an instance for the `weir` program itself: on Linux its children do not outlive it,
    /// however it ends.
    pub fn for_program() -> Self {
        Self { has_shim: cfg!(target_os = "linux"), ..Self::default() }
    }

    /// Lets child processes be started with the search path of the user's login shell, if their
    /// commands say so. Its last answer is kept in `folder`. `is_started_by_client`: the search
    /// path of this process is that of a client, and not chosen by an operator.
    #[must_use]
    pub fn with_login_shell(self, folder: Option<&Path>, is_started_by_client: bool) -> Self {
        let has_shim = self.has_shim;
        let spawn = move |command: &ChildCommand| {
            start(command, has_shim, ControllingTerminal::Without, None)
        };
        // One of the shell's own files may start Weir, which must not ask the shell again.
        let is_asked = std::env::var_os(ASKED_VARIABLE).is_some();
        let login_shell = (!is_asked).then(|| LoginShell::new(folder, spawn));
        Self { login_shell, is_started_by_client, ..self }
    }

    /// Gives a receiver all messages between Weir and the upstreams.
    #[must_use]
    pub fn with_trace_sink(self, trace_sink: Option<Arc<dyn TraceSink>>) -> Self {
        Self { trace_sink, ..self }
    }

    /// Finds the program of a command in the folders in which it would be looked up at the start of
    /// the command. The login shell is asked if the command would be started with its search path.
    pub async fn locate(&self, command: &ChildCommand) -> io::Result<PathBuf> {
        let login_path = self.login_path(command).await;
        let command = match &login_path {
            Some(path) => &command.with_search_path_from(path),
            None => command,
        };
        let folder = command.cwd.as_deref().unwrap_or(Path::new(""));
        find_program(&command.program, command.search_path(), folder)
    }

    fn tls(&self) -> io::Result<&TlsConnector> {
        self.tls
            .get_or_init(tls::system_connector)
            .as_ref()
            .map_err(|text| io::Error::other(text.clone()))
    }

    async fn open(&self, to: Destination<'_>) -> io::Result<Box<dyn ByteStream>> {
        let server = Address::of(to.url)?;
        if let Some(allowed) = to.allowed {
            allowed.check_host(server.host).map_err(|why| server.error(why))?;
        }
        let stream = match to.egress.proxy(to.url) {
            Some(proxy) => self.open_through(&proxy, &server, to).await?,
            None => self.dial(&server, to.timeout, to.allowed).await?,
        };
        match server.is_tls {
            true => {
                protect(stream, server.host, to.egress.tls().map_or_else(|| self.tls(), Ok)?).await
            }
            false => Ok(stream),
        }
    }

    /// Opens a connection to a server through a proxy, or to the proxy if it forwards the requests.
    async fn open_through(
        &self,
        proxy: &Intercept,
        server: &Address<'_>,
        to: Destination<'_>,
    ) -> io::Result<Box<dyn ByteStream>> {
        if let Some(allowed) = to.allowed {
            self.check_addresses(server, allowed).await?;
        }
        let with_proxy =
            |error: io::Error| io::Error::new(error.kind(), format!("the proxy {error}"));
        let address = Address::of(proxy.uri())?;
        let mut stream = self.dial(&address, to.timeout, None).await.map_err(with_proxy)?;
        if address.is_tls {
            stream = protect(stream, address.host, self.tls()?).await.map_err(with_proxy)?;
        }
        match server.is_tls {
            true => proxy::tunnel(stream, proxy, &server.to_string()).await,
            false => Ok(stream),
        }
    }

    /// Opens a connection to one of the allowed addresses of a name; `None` allows all.
    async fn dial(
        &self,
        server: &Address<'_>,
        time: Duration,
        allowed: Option<&AllowedAddresses>,
    ) -> io::Result<Box<dyn ByteStream>> {
        let found = self.look_up(server, LOOKUP_TIMEOUT).await;
        let mut addresses = found.map_err(|error| server.wrap(&error))?;
        if let Some(allowed) = allowed {
            addresses.retain(|address| allowed.contain(address.ip()));
            if addresses.is_empty() {
                return Err(server.error(NOT_PUBLIC_ADDRESS));
            }
        }
        addresses.truncate(MAX_ADDRESSES);
        Ok(Box::new(connect(addresses, time).await.map_err(|error| server.wrap(&error))?))
    }

    /// Checks the addresses of a server to which a proxy is to connect, as far as Weir can look
    /// them up. The proxy looks the name up itself, in a network that Weir does not know.
    async fn check_addresses(
        &self,
        server: &Address<'_>,
        allowed: &AllowedAddresses,
    ) -> io::Result<()> {
        if allowed.any_name {
            return Ok(());
        }
        match self.look_up(server, PROXIED_LOOKUP_TIMEOUT).await {
            Ok(found) if !found.iter().all(|address| allowed.contain(address.ip())) => {
                Err(server.error(NOT_PUBLIC_ADDRESS))
            }
            Ok(_) => Ok(()),
            Err(error) => {
                tracing::debug!(%error, "name of a server that only the proxy can look up");
                Ok(())
            }
        }
    }

    /// Looks up the addresses of a name, for each connection anew: an earlier result may be
    /// outdated.
    async fn look_up(&self, server: &Address<'_>, time: Duration) -> io::Result<Vec<SocketAddr>> {
        let found = timeout(time, (self.resolver.0)(server.host.to_owned(), server.port)).await;
        let timed_out = |_| io::Error::new(io::ErrorKind::TimedOut, "DNS lookup timed out");
        let mut found = found.map_err(timed_out).flatten()?;
        // RFC 6761, 6.3: without TLS all is sent there, because it does not leave this machine.
        if is_loopback_host(server.host) {
            found.retain(|address| address.ip().to_canonical().is_loopback());
            if found.is_empty() {
                return Err(io::Error::other("the name leads to another machine"));
            }
        }
        Ok(found)
    }
}

/// DNS resolver: the system's, or a test's own.
struct Resolver(Box<LookupFn>);

type LookupFn =
    dyn Fn(String, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync;

impl Default for Resolver {
    fn default() -> Self {
        let system =
            async |host: String, port| Ok(tokio::net::lookup_host((host, port)).await?.collect());
        Self(Box::new(move |host, port| system(host, port).boxed()))
    }
}

/// Host and port of a URL.
struct Address<'a> {
    /// Name or address; that of version 6 without brackets.
    host: &'a str,
    port: u16,
    is_tls: bool,
}

impl<'a> Address<'a> {
    fn of(url: &'a Uri) -> io::Result<Self> {
        let host = url.host().ok_or_else(|| io::Error::other("the URL names no host"))?;
        let is_tls = url.scheme_str() == Some("https");
        if !has_valid_port(url) {
            return Err(io::Error::other(format!("{host}: the port in the URL is none")));
        }
        let port = url.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        // The brackets are part of the URL syntax only.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Ok(Self { host, port, is_tls })
    }

    /// Returns an error about the server.
    fn error(&self, why: &str) -> io::Error {
        io::Error::other(format!("{self}: {why}"))
    }

    /// Returns the error with the address of the server.
    fn wrap(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{self}: {error}"))
    }
}

impl fmt::Display for Address<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl Connect for System {
    fn connect<'a>(
        &'a self,
        to: Destination<'a>,
    ) -> BoxFuture<'a, io::Result<Box<dyn ByteStream>>> {
        self.open(to).boxed()
    }

    fn spawn(&self, command: &ChildCommand) -> io::Result<Child> {
        start(command, self.has_shim, ControllingTerminal::Inherited, None)
    }

    fn spawn_until(&self, command: &ChildCommand, deadline: &Deadline) -> io::Result<Child> {
        start(command, self.has_shim, ControllingTerminal::Inherited, Some(deadline))
    }

    fn login_path<'a>(&'a self, command: &'a ChildCommand) -> BoxFuture<'a, Option<String>> {
        async {
            let shell = self.login_shell.as_ref()?;
            match wants_login_path(command, self.is_started_by_client) {
                true => shell.path().await,
                false => None,
            }
        }
        .boxed()
    }

    fn trace_sink(&self) -> Option<Arc<dyn TraceSink>> {
        self.trace_sink.clone()
    }
}

/// Returns whether a command is to be started with the search path of the login shell.
fn wants_login_path(command: &ChildCommand, is_started_by_client: bool) -> bool {
    match command.login_path {
        LoginPath::Never => false,
        LoginPath::Always => command.inherits_search_path(),
        LoginPath::Auto => is_started_by_client && lacks_search_path(command),
    }
}

/// Returns whether a command inherits a search path that is that of a desktop, or that does not
/// lead to its program.
fn lacks_search_path(command: &ChildCommand) -> bool {
    let path = command.search_path();
    let is_missing = || {
        let found = find_program(&command.program, path, Path::new(""));
        !command.program.contains('/') && found.is_err()
    };
    command.inherits_search_path() && (path.is_none_or(is_of_system) || is_missing())
}

async fn connect(addresses: Vec<SocketAddr>, time: Duration) -> io::Result<TcpStream> {
    let timed_out = |_| io::Error::new(io::ErrorKind::TimedOut, "connecting timed out");
    let mut last = io::Error::other("the host name has no address");
    for address in addresses {
        let connected = timeout(time, TcpStream::connect(address)).await;
        match connected.map_err(timed_out).flatten() {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                if let Err(error) = keep_alive(&stream) {
                    tracing::debug!(%error, "TCP keep-alive not available");
                }
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Enables TCP keep-alive, so that the system detects a lost peer and middleboxes keep the
/// connection: an event stream may be silent for hours.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEP_ALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE_AGAIN)?;
    sockopt::set_tcp_keepcnt(stream, KEEP_ALIVE_TRIES)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    //! With real processes, real sockets and a real clock.

    use std::sync::{Arc, LazyLock};

    use crate::connect::system::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    use crate::connect::Egress;
    use crate::connect::egress::ProxySettings;
    use crate::testing::{SendCall, TestTransport, call, payload, settings};
    use crate::{ConnectionStatus, Upstream, UpstreamSource};
    use weir_mcp::kind::Kind;

    fn sh(script: &str) -> ChildCommand {
        let path = std::env::var("PATH").expect("a path");
        ChildCommand {
            program: "sh".into(),
            display_name: "sh".into(),
            args: vec!["-c".into(), script.into()],
            inherited: vec![("PATH".into(), path.into())],
            env: vec![("GIVEN".into(), "1".into())],
            ..ChildCommand::default()
        }
    }

    async fn output(child: &mut Child) -> String {
        let mut text = String::new();
        child.stdout.read_to_string(&mut text).await.expect("a pipe");
        text
    }

    #[tokio::test]
    async fn a_child_gets_its_environment_and_no_more() {
        let mut child = System::new().spawn(&sh("env | cut -d= -f1 | sort; exit 3")).expect("sh");
        let names = output(&mut child).await;
        let inherited = ["CARGO", "HOME", "USER"].map(|name| names.lines().any(|it| it == name));
        assert!(names.contains("GIVEN") && inherited == [false; 3], "{names}");
        assert_eq!(child.process.wait().await, "exited with code 3");
    }

    #[tokio::test]
    async fn a_program_is_started_without_a_shell() {
        let text = "$(id) `id` $HOME ; id * > x";
        let args = vec!["%s".into(), text.into()];
        let printf = ChildCommand { program: "printf".into(), args, ..sh("") };
        let mut child = System::new().spawn(&printf).expect("printf");
        assert_eq!(output(&mut child).await, text);
        assert_eq!(child.process.wait().await, "exited with code 0");
    }

    static DIRECT: LazyLock<Egress> = LazyLock::new(Egress::default);

    fn to(url: &Uri) -> Destination<'_> {
        Destination { url, timeout: CONNECT, allowed: None, egress: &DIRECT }
    }

    /// System with this resolver.
    fn with_resolver<F>(resolver: impl Fn() -> F + Send + Sync + 'static) -> System
    where
        F: Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    {
        System { resolver: Resolver(Box::new(move |_, _| resolver().boxed())), ..System::default() }
    }

    /// Serves connections and responds with its own name.
    async fn start_server(name: &'static str, tasks: &TaskTracker) -> SocketAddr {
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
        use crate::message::{SentFlag, TransportError};
        use crate::transport::http_pool::{HttpPool, PooledBody};
        use weir_base::tasks::sync::Mutex;

        let servers = TaskTracker::new();
        let (first, second) =
            (start_server("first", &servers).await, start_server("second", &servers).await);
        // Address of the name, if it is known, and the number of lookups.
        let address_and_count = Arc::new(Mutex::new((Some(first), 0)));
        let lookups = Arc::clone(&address_and_count);
        let host = with_resolver(move || {
            let mut address_and_count = lookups.lock();
            address_and_count.1 += 1;
            let address = address_and_count.0.ok_or_else(|| io::Error::other("no address known"));
            async move { address.map(|it| vec![it]) }
        });
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let url = Uri::from_static("http://upstream.test:1/");
        let pool =
            HttpPool::new(Arc::new(host), (url, Egress::default()), 1, CONNECT, tasks, &stop);
        let send = async || {
            let request = hyper::Request::get("/").header("host", "upstream.test");
            let request = request.body(http_body_util::Full::default()).expect("a request");
            Ok::<_, TransportError>(pool.send(request, &SentFlag::default()).await?.into_body())
        };
        let read = async |mut body: PooledBody| {
            let piece = body.chunk().await.expect("a body").expect("whole");
            assert!(body.chunk().await.is_none());
            String::from_utf8(piece.to_vec()).expect("text")
        };
        assert_eq!(read(send().await.expect("a response")).await, "first");
        address_and_count.lock().0 = None;
        // The open connection keeps working while the name cannot be resolved.
        for _ in 0..100 {
            assert_eq!(read(send().await.expect("a response")).await, "first");
        }
        assert_eq!(address_and_count.lock().1, 1);
        // The connection is in use, so this request needs another one.
        let busy = send().await.expect("a response");
        let error = send().await.err().expect("the name is unknown");
        assert!(
            matches!(&error, TransportError::NotSent(text) if text.contains("no address known")),
            "{error:?}"
        );
        address_and_count.lock().0 = Some(second);
        assert_eq!(read(send().await.expect("a response")).await, "second");
        assert_eq!(read(busy).await, "first");
        assert_eq!(address_and_count.lock().1, 3);
        stop.cancel();
    }

    #[tokio::test(start_paused = true)]
    async fn f12_a_name_that_nobody_knows_is_given_up_after_five_seconds() {
        let host = with_resolver(std::future::pending);
        let begin = tokio::time::Instant::now();
        let url = Uri::from_static("http://upstream.test/mcp");
        let error = host.connect(to(&url)).await.err().expect("the lookup fails");
        assert_eq!(error.to_string(), "upstream.test:80: DNS lookup timed out");
        assert_eq!(begin.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test]
    async fn a_connection_goes_to_an_allowed_address_only() {
        let tasks = TaskTracker::new();
        let server = start_server("inside", &tasks).await;
        let outside = SocketAddr::from(([169, 254, 169, 254], 80));
        let found = Arc::new(weir_base::tasks::sync::Mutex::new(vec![outside, server]));
        let resolved = Arc::clone(&found);
        let host = with_resolver(move || std::future::ready(Ok(resolved.lock().clone())));
        let url = Uri::from_static("http://id.weir.dev/token");
        let refused = format!("id.weir.dev:80: {NOT_PUBLIC_ADDRESS}");
        let connect = async |allowed: &AllowedAddresses| {
            let opened = host.connect(Destination { allowed: Some(allowed), ..to(&url) }).await;
            opened.map(|_| ()).map_err(|error| error.to_string())
        };
        let public = AllowedAddresses::default();
        assert_eq!(connect(&public).await, Err(refused.clone()));
        // Of several addresses only the allowed ones are tried.
        let local = AllowedAddresses { loopback: true, ..AllowedAddresses::default() };
        assert_eq!(connect(&local).await, Ok(()));
        // Each connection looks the name up again, and checks what was found.
        found.lock().truncate(1);
        assert_eq!(connect(&local).await, Err(refused.clone()));
    }

    #[tokio::test]
    async fn localhost_is_this_machine_whatever_a_look_up_finds() {
        let tasks = TaskTracker::new();
        let server = start_server("inside", &tasks).await;
        let elsewhere = SocketAddr::from(([10, 0, 0, 1], server.port()));
        let found = Arc::new(weir_base::tasks::sync::Mutex::new(vec![elsewhere, server]));
        let resolved = Arc::clone(&found);
        let host = with_resolver(move || std::future::ready(Ok(resolved.lock().clone())));
        for url in ["http://localhost/mcp", "https://LOCALHOST/mcp"] {
            let url = Uri::from_static(url);
            let addresses = host.look_up(&Address::of(&url).expect("one"), CONNECT).await;
            assert_eq!(addresses.expect("found"), [server], "{url}");
        }
        // What goes there without TLS would go to another machine.
        found.lock().truncate(1);
        let url = Uri::from_static("http://localhost/mcp");
        let error = host.connect(to(&url)).await.err().expect("refused").to_string();
        assert_eq!(error, "localhost:80: the name leads to another machine");
    }

    /// Name of a proxy that no resolver of a test knows.
    const PROXY: &str = "proxy.weir.dev";

    fn through_a_proxy(no_proxy: &str) -> Egress {
        let proxy = Some(weir_base::secrets::secret::Secret::from(format!("http://{PROXY}:1")));
        let settings =
            ProxySettings { http: proxy.clone(), https: proxy, no_proxy: no_proxy.to_owned() };
        Egress::through(settings).expect("a proxy")
    }

    /// Resolver of a test: the names that were looked up, and the addresses of each.
    fn resolving(
        addresses: &'static [&'static str],
    ) -> (System, Arc<weir_base::tasks::sync::Mutex<Vec<String>>>) {
        let names = Arc::<weir_base::tasks::sync::Mutex<Vec<String>>>::default();
        let looked_up = Arc::clone(&names);
        let resolver = move |host: String, port: u16| {
            let addresses = if host == PROXY { &[][..] } else { addresses };
            looked_up.lock().push(host);
            let addresses = addresses.iter().map(|address| address.parse().expect("an address"));
            let found: Vec<_> = addresses.map(|address| SocketAddr::new(address, port)).collect();
            let no_name = io::Error::other("no such name");
            let found = if found.is_empty() { Err(no_name) } else { Ok(found) };
            std::future::ready(found).boxed()
        };
        (System { resolver: Resolver(Box::new(resolver)), ..System::new() }, names)
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_is_not_of_the_public_dns_is_neither_looked_up_nor_requested() {
        let proxy = through_a_proxy("");
        for egress in [Egress::default(), proxy] {
            for host in [
                "metadata.google.internal",
                "METADATA.google.Internal.",
                "kubernetes.default.svc",
                "kubernetes.default.svc.cluster.local",
                "printer.local",
                "nas.home.arpa",
                "1.0.0.10.in-addr.arpa",
                "a.localhost",
                "intranet",
                "a.onion",
            ] {
                let (system, names) = resolving(&["8.8.8.8"]);
                let url: Uri = format!("https://{host}/token").parse().expect("a URL");
                let allowed = AllowedAddresses::default();
                let to = Destination { allowed: Some(&allowed), egress: &egress, ..to(&url) };
                let error = system.connect(to).await.err().expect("refused").to_string();
                assert!(error.contains("not one of the public DNS"), "{host}: {error}");
                assert!(error.contains("auth.issuer"), "{host}: {error}");
                assert!(names.lock().is_empty(), "{host}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_proxy_is_asked_for_no_name_with_an_address_that_is_not_allowed() {
        let egress = through_a_proxy("");
        let connect =
            async |host: &str, found: &'static [&'static str], allowed: &AllowedAddresses| {
                let (system, names) = resolving(found);
                let url: Uri = format!("https://{host}/token").parse().expect("a URL");
                let to = Destination { allowed: Some(allowed), egress: &egress, ..to(&url) };
                let connecting = timeout(Duration::from_secs(60), system.connect(to)).await;
                let error = connecting.expect("in time").err().expect("there is no proxy");
                (error.to_string(), names.lock().clone())
            };
        let public = AllowedAddresses::default();
        for found in [
            &["10.0.0.1"][..],
            &["169.254.169.254"],
            &["127.0.0.1"],
            &["::ffff:10.0.0.1"],
            // One of many is enough.
            &["8.8.8.8", "1.1.1.1", "9.9.9.9", "8.8.4.4", "1.0.0.1", "fd00::1"],
        ] {
            let (error, names) = connect("id.weir.dev", found, &public).await;
            assert!(error.starts_with("id.weir.dev:443: the address is not public"), "{error}");
            assert_eq!(names, ["id.weir.dev"], "not even the proxy is looked up");
        }
        // Addresses in any spelling, without a look-up.
        for host in ["10.0.0.1", "0x7f.1", "2130706433", "127.1", "[::ffff:a00:1]", "[fd00::1]"] {
            let (error, names) = connect(host, &["8.8.8.8"], &public).await;
            assert!(error.contains("the address is not public"), "{host}: {error}");
            assert_eq!(names, [""; 0], "{host}");
        }
        let is_of_proxy = |error: &str| error.starts_with("the proxy proxy.weir.dev:1: ");
        for (found, allowed) in [
            (&["8.8.8.8"][..], public.clone()),
            // Only the proxy knows the name.
            (&[], public.clone()),
            (
                &["10.0.0.1"],
                AllowedAddresses {
                    private_networks: vec!["10.0.0.0/8".parse().expect("a network")],
                    ..public.clone()
                },
            ),
            // The operator has written the name.
            (&["10.0.0.1"], AllowedAddresses { any_name: true, ..public.clone() }),
        ] {
            let (error, names) = connect("id.weir.dev", found, &allowed).await;
            assert!(is_of_proxy(&error), "{found:?}: {error}");
            let own = names.iter().filter(|name| *name == "id.weir.dev").count();
            assert_eq!(own, usize::from(!allowed.any_name), "{names:?}");
        }
        let written = AllowedAddresses { any_name: true, ..public };
        let (error, _) = connect("id.auth.svc", &[], &written).await;
        assert!(is_of_proxy(&error), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_reached_without_the_proxy_is_checked_all_the_same() {
        let egress = through_a_proxy("weir.dev");
        let (system, names) = resolving(&["10.0.0.1"]);
        let url = Uri::from_static("https://id.weir.dev/token");
        let allowed = AllowedAddresses::default();
        let to = Destination { allowed: Some(&allowed), egress: &egress, ..to(&url) };
        let error = system.connect(to).await.err().expect("refused").to_string();
        assert!(error.starts_with("id.weir.dev:443: the address is not public"), "{error}");
        assert_eq!(*names.lock(), ["id.weir.dev"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_beside_that_of_a_proxy_ends_after_two_seconds() {
        let resolver = |host: String, _| match host.as_str() {
            PROXY => std::future::ready(Err(io::Error::other("no such name"))).boxed(),
            _ => std::future::pending().boxed(),
        };
        let system = System { resolver: Resolver(Box::new(resolver)), ..System::new() };
        let egress = through_a_proxy("");
        let url = Uri::from_static("https://id.weir.dev/token");
        let allowed = AllowedAddresses::default();
        let to = Destination { allowed: Some(&allowed), egress: &egress, ..to(&url) };
        let begin = tokio::time::Instant::now();
        let error = system.connect(to).await.err().expect("there is no proxy").to_string();
        assert_eq!(error, "the proxy proxy.weir.dev:1: no such name");
        assert_eq!(begin.elapsed(), Duration::from_secs(2));
    }

    #[tokio::test]
    async fn a_url_with_a_port_that_is_none_is_refused() {
        for url in ["http://a.test:99999/", "http://a.test:0/", "http://[::1]:99999/"] {
            let error = System::new().connect(to(&Uri::from_static(url))).await.err();
            let error = error.expect("refused").to_string();
            assert!(error.ends_with("the port in the URL is none"), "{url}: {error}");
        }
    }

    #[tokio::test]
    async fn what_a_child_has_started_goes_with_it() {
        // The grandchild holds standard output open until it dies.
        let mut child = System::new().spawn(&sh("sleep 1000 & echo started; wait")).expect("sh");
        let mut started = [0; 8];
        child.stdout.read_exact(&mut started).await.expect("a pipe");
        child.process.terminate();
        assert_eq!(output(&mut child).await, "");
        assert_eq!(child.process.wait().await, "was killed by signal 15");

        let mut child = System::new().spawn(&sh("sleep 1000 & echo started; wait")).expect("sh");
        child.stdout.read_exact(&mut started).await.expect("a pipe");
        drop(child.process);
        let mut rest = Vec::new();
        child.stdout.read_to_end(&mut rest).await.expect("a pipe");
    }

    #[tokio::test]
    async fn why_a_program_cannot_be_started_is_said_in_words() {
        let refusal = |change: fn(&mut ChildCommand)| {
            let mut command = ChildCommand { display_name: "${SH}".into(), ..sh("") };
            change(&mut command);
            System::new().spawn(&command).map(|_| ()).expect_err("no such thing").to_string()
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

    #[test]
    fn the_login_shell_is_asked_for_a_program_that_is_not_found_and_on_a_desktop() {
        let lacks = |path: &str, program: &str, own: Option<&str>| {
            let own = own.map(|path| ("PATH".to_owned(), path.into()));
            lacks_search_path(&ChildCommand {
                program: program.into(),
                inherited: vec![("PATH".into(), path.into())],
                env: own.into_iter().collect(),
                ..ChildCommand::default()
            })
        };
        let (desktop, shell) = ("/usr/bin:/bin", "/home/ann/bin:/usr/bin:/bin");
        assert!(lacks(desktop, "sh", None) && lacks(desktop, "/bin/sh", None));
        assert!(!lacks(shell, "sh", None) && lacks(shell, "no-such-program", None));
        assert!(!lacks(shell, "/no/such/program", None));
        assert!(!lacks(desktop, "no-such-program", Some("/configured")));
    }

    #[test]
    fn the_login_shell_is_asked_where_the_configuration_or_the_start_says_so() {
        for (login_path, is_started_by_client, is_wanted) in [
            (LoginPath::Auto, true, true),
            (LoginPath::Auto, false, false),
            (LoginPath::Always, true, true),
            (LoginPath::Always, false, true),
            (LoginPath::Never, true, false),
            (LoginPath::Never, false, false),
        ] {
            let inherited = vec![("PATH".into(), "/usr/bin:/bin".into())];
            let command = ChildCommand { login_path, inherited, ..sh("") };
            let wants = wants_login_path(&command, is_started_by_client);
            assert_eq!(wants, is_wanted, "{login_path:?} {is_started_by_client}");
            let env = vec![("PATH".into(), "/configured".into())];
            let configured = ChildCommand { env, ..command };
            assert!(!wants_login_path(&configured, is_started_by_client), "{login_path:?}");
        }
    }

    #[tokio::test]
    async fn a_server_is_connected_to_by_address() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let url: Uri = format!("http://127.0.0.1:{port}/mcp").parse().expect("a URL");
        let host = System::new();
        let (ours, theirs) = tokio::join!(host.connect(to(&url)), listener.accept());
        ours.expect("connected").write_all(b"x").await.expect("written");
        let mut read = [0];
        theirs.expect("accepted").0.read_exact(&mut read).await.expect("read");
        // No other process can listen on a port that is bound.
        let silent = tokio::net::TcpSocket::new_v4().expect("a socket");
        silent.bind(([127, 0, 0, 1], 0).into()).expect("a port");
        let url: Uri =
            format!("http://{}/mcp", silent.local_addr().expect("bound")).parse().expect("a URL");
        let refused = host.connect(to(&url)).await.map(|_| ()).expect_err("there is no listener");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn a_silent_connection_is_probed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let stream =
            crate::connect::system::connect(vec![address], CONNECT).await.expect("connected");
        assert!(sockopt::socket_keepalive(&stream).expect("an option"));
        assert_eq!(sockopt::tcp_keepidle(&stream).expect("an option"), KEEP_ALIVE_AFTER);
    }

    #[tokio::test]
    async fn a_server_without_tls_is_an_error_in_words() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let url: Uri = format!("https://127.0.0.1:{port}/mcp").parse().expect("a URL");
        let host = System::new();
        let hang_up = async { drop(listener.accept().await) };
        let (refused, ()) = tokio::join!(host.connect(to(&url)), hang_up);
        let refused = refused.map(|_| ()).expect_err("no TLS there").to_string();
        assert!(refused.starts_with("TLS: "), "{refused}");
        let answer = async {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.expect("written");
            // Until Weir hangs up: a reset could overtake the response.
            let _ = stream.read_to_end(&mut Vec::new()).await;
        };
        let (refused, ()) = tokio::join!(host.connect(to(&url)), answer);
        let refused = refused.map(|_| ()).expect_err("no TLS there").to_string();
        assert_eq!(refused, "TLS: the server answers without TLS; try http:// in its URL");
    }

    const CONNECT: Duration = Duration::from_secs(2);
    /// No step of a test takes so long.
    const LONG: Duration = Duration::from_secs(60);

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
        // The kernel accepts one or two connections by itself; a further one receives no answer.
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
        // The kernel itself would give up after two minutes.
        assert!((1..9).contains(&taken.len()) && took >= time && took < LONG, "{took:?}");
    }

    #[tokio::test]
    async fn a_real_child_is_an_upstream() {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let mut settings = settings(TestTransport::Stdio);
        settings.source = UpstreamSource::Process(sh(SERVER));
        settings.timeouts.stop = 2 * LONG;
        let upstream = {
            let (connector, budget) = (
                Arc::new(System::new()),
                weir_base::memory::memory_budget::MemoryBudget::new(1 << 20),
            );
            Upstream::start(settings, connector, &budget, &tasks, stop.clone())
        };
        let mut status = upstream.status();
        let settled = status.wait_for(|status| !matches!(status, ConnectionStatus::Starting)).await;
        assert!(matches!(&*settled.expect("alive"), ConnectionStatus::Up(_)));
        let listing = upstream.list(Kind::Prompt).await.expect("a list");
        assert_eq!(&*listing.items[0].key, "hello");
        let lookups = call(weir_mcp::revision::Revision::NEWEST);
        let reply = payload(upstream.send(lookups).await.expect("a reply")).await;
        assert!(reply.starts_with(r#"{"content":[],"pid":"#), "{reply}");
        stop.cancel();
        tasks.close();
        // Its standard input is closed, so it ends by itself.
        timeout(LONG, tasks.wait()).await.expect("nothing is left over");
    }
}
