//! Weir: with its defaults, with all of its policy on, and in front of many servers.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};

use super::others::fixture_arguments;
use super::{Programs, Running, free_address, running};
use crate::fixture;
use crate::fixture::TOKEN;
use crate::load::peer::Era;
use crate::process::Process;

/// Upstreams and policy of a Weir.
#[derive(Clone, Copy)]
pub(crate) struct Setup<'a> {
    /// Servers over HTTP.
    pub(crate) upstreams: &'a [SocketAddr],
    /// One server over stdio, instead.
    pub(crate) stdio: Option<&'a fixture::Settings>,
    /// Era of the upstreams.
    pub(crate) era: Era,
    pub(crate) policy: Policy,
    /// Items on a page.
    pub(crate) page: usize,
    /// Streams that one client may have open.
    pub(crate) streams: usize,
    /// Whether prompts are checked.
    pub(crate) guard: bool,
    /// Credentials of Weir for the upstreams.
    pub(crate) credentials: Credentials,
    /// Store of the fleet that it is a replica of.
    pub(crate) store: Option<SocketAddr>,
}

impl<'a> Setup<'a> {
    /// Defaults, in front of these upstreams.
    pub(crate) fn of(upstreams: &'a [SocketAddr], era: Era) -> Self {
        Self {
            upstreams,
            stdio: None,
            era,
            policy: Policy::None,
            page: 200,
            streams: 8,
            guard: true,
            credentials: Credentials::None,
            store: None,
        }
    }
}

/// Rules for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// No rules: all clients may use everything.
    None,
    /// Keys with this number of roles, two limits, and an audit log.
    Full { roles: usize },
}

/// Credentials of Weir for the upstreams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Credentials {
    /// None.
    None,
    /// A token in the configuration.
    Bearer,
    /// That token, issued by the fixture when a user has signed in, and kept in the state folder.
    OAuth,
}

impl Credentials {
    /// Returns the keys of an upstream.
    fn keys(self) -> String {
        match self {
            Self::None => String::new(),
            Self::Bearer => format!("auth = {{ type = \"bearer\", token = \"{TOKEN}\" }}\n"),
            Self::OAuth => "auth = { type = \"oauth\", client_id = \"weir\" }\n".to_owned(),
        }
    }
}

/// Number of keys: 256 connections exceed the calls that one client may have in flight.
const KEYS: usize = 32;

pub(crate) fn start(programs: &Programs, setup: &Setup<'_>, folder: &Path) -> io::Result<Running> {
    std::fs::create_dir_all(folder)?;
    let address = free_address();
    let keys = match setup.policy {
        Policy::None => Vec::new(),
        Policy::Full { .. } => (0..KEYS).map(key).collect(),
    };
    let file = folder.join("weir.toml");
    std::fs::write(&file, configuration(setup, address, &keys, folder)?)?;
    if setup.credentials == Credentials::OAuth {
        for number in 0..setup.upstreams.len() {
            sign_in(&programs.weir, &file, &format!("up{number}"), folder)?;
        }
    }
    let mut command = Command::new(&programs.weir);
    command.arg("serve").arg("--config").arg(file).current_dir(folder);
    let process = Process::start(command, &folder.join("errors"))?;
    Ok(Running { keys, ..running(address, Some(process), folder) })
}

/// Signs in to an upstream with `weir login`, as a browser in which the user consents at once.
fn sign_in(weir: &Path, config: &Path, upstream: &str, folder: &Path) -> io::Result<()> {
    let mut login = Command::new(weir);
    login.args(["login", upstream, "--no-browser", "--config"]).arg(config).current_dir(folder);
    login.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut login = login.spawn()?;
    let mut said = String::new();
    for line in login.stderr.take().map(BufReader::new).into_iter().flat_map(BufRead::lines) {
        let line = line?;
        let find = |name: &str| {
            let pairs = line.split_once("/authorize?").map_or("", |(_, query)| query).split('&');
            pairs.filter_map(|pair| pair.split_once('=')).find(|it| it.0 == name).map(|it| it.1)
        };
        if let (Some(uri), Some(state)) = (find("redirect_uri"), find("state")) {
            let uri = uri.replace("%3A", ":").replace("%2F", "/");
            let (address, path) =
                uri.trim_start_matches("http://").split_once('/').unwrap_or_default();
            let mut browser = TcpStream::connect(address)?;
            write!(
                browser,
                "GET /{path}?code=c&state={state} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
            )?;
            browser.read_to_end(&mut Vec::new())?;
        }
        said.push_str(&line);
    }
    match login.wait()?.success() {
        true => Ok(()),
        false => Err(io::Error::other(said)),
    }
}

fn configuration(
    setup: &Setup<'_>,
    address: SocketAddr,
    keys: &[String],
    folder: &Path,
) -> io::Result<String> {
    let folder = folder.display();
    let streams = setup.streams;
    // A replica would wait for its balancer.
    let delay = setup.store.map_or("", |_| "shutdown_delay = \"1s\"\n");
    let mut text = format!(
        "[server]\nlisten = \"{address}\"\nper_client = {{ streams = {streams} }}\nmax_connections = 12000\n{delay}\
         [protocol]\npage_size = {}\n[state]\ndir = \"{folder}/state\"\ncatalog = false\n[admin]\nenabled = false\n[log]\nlevel = \"warn\"\n",
        setup.page
    );
    if setup.credentials == Credentials::OAuth {
        text.push_str("[sign_in]\ninsecure_loopback = true\n");
    }
    if let Some(store) = setup.store {
        let (listen, key) = (free_address(), "A".repeat(43));
        let _ = write!(
            text,
            "[fleet]\nstore = {{ url = \"redis://{store}\" }}\nkeys = \"{key}\"\nlisten = \"{listen}\"\n"
        );
    }
    if !setup.guard {
        text.push_str("[guard]\narguments = \"off\"\noutput = \"off\"\nhidden_text = \"pass\"\npinning = \"off\"\n");
    }
    let era = setup.era.name();
    // A name belongs to one server, so that the items of one are listed in their order.
    for (number, upstream) in setup.upstreams.iter().enumerate() {
        let _ = write!(
            text,
            "[upstreams.up{number}]\nera = \"{era}\"\nurl = \"http://{upstream}/mcp\"\n{}",
            setup.credentials.keys()
        );
    }
    if let Some(settings) = setup.stdio {
        let program = std::env::current_exe()?;
        let arguments = serde_json::to_string(&fixture_arguments(settings))?;
        let _ = write!(
            text,
            "[upstreams.up0]\nera = \"{era}\"\ncommand = {:?}\nargs = {arguments}\n",
            program.display().to_string()
        );
    }
    if let Policy::Full { roles } = setup.policy {
        let _ = write!(
            text,
            "[audit]\nenabled = true\npath = \"{folder}/audit.jsonl\"\n[auth]\nmode = \"required\"\n\
             [[limits]]\nper = \"client\"\nrate = \"1000000/s\"\n\
             [[limits]]\nper = \"client\"\nmethod = [\"prompts/get\", \"tools/call\"]\nmatch = \"up0/*\"\nconcurrency = 64\n"
        );
        for role in 0..roles {
            let rules = format!("allow = [\"*/*\"], deny = [\"*/secret*\", \"*/-{role}-*\"]");
            let _ =
                write!(text, "[roles.r{role}]\nprompts = {{ {rules} }}\ntools = {{ {rules} }}\n");
        }
        for (number, key) in keys.iter().enumerate() {
            let hash = Sha256::digest(key);
            let hash = hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let role = number % roles;
            let _ = write!(
                text,
                "[clients.c{number}]\nrole = \"r{role}\"\nkey_sha256 = [\"{hash}\"]\n"
            );
        }
    } else {
        text.push_str("[auth]\nmode = \"anonymous\"\n");
    }
    Ok(text)
}

/// A key of Weir's own form, with its check digits: any other would be rejected before its lookup.
fn key(who: usize) -> String {
    let body = format!("weir_{who:043}");
    let step = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
    let fold = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), step);
    let mut rest = !body.as_bytes().iter().fold(!0, fold);
    let digits = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut check = [b'0'; 6];
    for digit in check.iter_mut().rev() {
        *digit = digits[(rest % 62) as usize];
        rest /= 62;
    }
    format!("{body}_{}", String::from_utf8_lossy(&check))
}
