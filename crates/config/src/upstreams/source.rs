//! Source of an upstream: the server or the folder that it names, and the keys that belong to it.

use std::path::PathBuf;

use hyper::Uri;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};

use super::Replicas;
use super::auth::{self, CredentialKeys, UpstreamCredentials};
use super::egress::{UpstreamTlsKeys, read_tls};
use super::environment::passed_variables;
use super::headers;
use super::sign_in::SignInSettings;
use crate::LoadContext;
use crate::keys::shape::{self, ValueShape};
use crate::keys::{Described, boolean, by_hand, choice, settings, strings, text, url, variant};
use crate::reader::report::{Span, ValueError, nearest};
use crate::reader::table_reader::{Parsed, SpannedName, TableReader};
use crate::reader::value;
use crate::secrets::{self, SecretResolver};
use weir_base::secrets::secret::Secret;
use weir_upstream::connect::tls::TlsSettings;
use weir_upstream::connect::{ChildCommand, Egress, LoginPath};
use weir_upstream::{HttpTransport, UpstreamSource};

settings! {
    /// One upstream MCP server. The name of the table is a lower-case letter, then at most 31 of
    /// a-z, 0-9 and `-`. Exactly one of `prompts_dir`, `command` and `url` says where the server
    /// is.
    ///
    /// `args`, `env`, `pass_env` and `cwd` go with `command`; `headers`, `auth`, `tls` and
    /// `transport` go with `url`. [The prompt library](prompt-library.md) describes the contents of
    /// a `prompts_dir`.
    ///
    /// ```toml
    /// [upstreams.library]                  # the built-in prompt library
    /// prompts_dir = "./prompts"
    ///
    /// #[upstreams.everything]              # a child process over stdio
    /// #command = "npx"
    /// #args = ["-y", "@modelcontextprotocol/server-everything"]
    /// #env = { LOG_LEVEL = "${LOG_LEVEL:-info}", API_KEY = { env = "EVERYTHING_KEY" } }
    /// #pass_env = ["NODE_OPTIONS"]
    /// #cwd = "."
    /// #lazy = true                         # started at its first use
    /// #rename = { "prompts/simple-prompt" = "hello", "tools/echo" = "say" }
    ///
    /// #[upstreams.github]                  # a server on the network
    /// #url = "https://api.githubcopilot.com/mcp/"
    /// #headers = { X-MCP-Readonly = "true", X-Team = { file = "secrets/team" } }
    /// #auth = { type = "bearer", token = { command = ["gh", "auth", "token"] } }
    /// #transport = "auto"
    /// #timeouts.call = "30s"               # the other timeouts are inherited
    /// #guard = { hidden_text = "strip", pinning = "locked" }
    ///
    /// #[upstreams.wiki]                    # a server with HTTP basic authentication
    /// #url = "https://wiki.example.com/mcp"
    /// #auth = { type = "basic", user = "weir", password = "${WIKI_PASSWORD:?ask for it}" }
    ///
    /// #[upstreams.orders]                  # a server that requires OAuth
    /// #url = "https://orders.example.com/mcp"
    /// #[upstreams.orders.auth]
    /// #type = "oauth"
    /// #grant = "client_credentials"
    /// #client_id = "weir"
    /// #client_secret = { file = "secrets/orders" }
    /// #issuer = "https://id.example.com"
    /// #metadata_url = "https://id.example.com/metadata.json"
    /// #metadata_issuer = "https://id.internal.example.com"
    /// #scopes = ["orders:read"]
    ///
    /// #[upstreams.stock]                   # the same with a key, at a server without metadata
    /// #url = "https://stock.example.com/mcp"
    /// #[upstreams.stock.auth]
    /// #type = "oauth"
    /// #grant = "client_credentials"
    /// #client_id = "weir"
    /// #client_key = { file = "secrets/weir-client.pem" }
    /// #client_key_id = "2026-11"
    /// #token_url = "https://login.example.com/token"
    /// #resource = "none"
    /// #params = { audience = "https://stock.example.com" }
    ///
    /// #[upstreams.office]                  # a server to which a user signs in, not with [fleet]
    /// #enabled = false
    /// #url = "https://office.example.com/mcp"
    /// #[upstreams.office.auth]
    /// #type = "oauth"
    /// #client_id = "weir"
    /// #issuer = "https://login.example.com/tenant/v2.0"
    /// #assume_pkce = true
    ///
    /// #[upstreams.ledger]                  # a server with its own CA, which wants a certificate
    /// #url = "https://ledger.example.com/mcp"
    /// #tls = { ca = "ca.crt", cert = "weir.crt", key = { file = "secrets/weir.key" } }
    ///
    /// #[upstreams.payroll]                 # with the identity of a Kubernetes workload
    /// #url = "https://payroll.example.com/mcp"
    /// #[upstreams.payroll.auth]
    /// #type = "oauth"
    /// #grant = "jwt_bearer"
    /// #assertion = { file = "/var/run/secrets/tokens/weir" }
    /// #issuer = "https://id.example.com"
    /// #allow_http = false                  # true for an http:// url, as in the same cluster
    /// ```
    pub(crate) struct UpstreamKeys {
        /// A folder of Markdown files that Weir itself serves as prompts. A relative path starts
        /// from the folder of the file that contains it.
        ///
        /// ```toml
        /// prompts_dir = "./prompts"
        /// ```
        prompts_dir: Option<PathBuf> = None, by_hand(FOLDER);
        /// A program that speaks MCP over standard input and output. Weir starts it without a
        /// shell, and restarts it when it ends. A name without a slash is looked up in `PATH`.
        ///
        /// ```toml
        /// command = "npx"
        /// ```
        command: Option<String> = None, text().optional();
        /// The endpoint of a server on the network. Credentials belong in `auth` or `headers`, not
        /// here; for a server that expects a key in its URL, `${file:PATH}` is the content of a
        /// secret's file.
        ///
        /// ```toml
        /// url = "https://api.githubcopilot.com/mcp/"
        /// ```
        url: Option<Uri> = None, url().optional();
        /// With `false` the upstream is not started and not served. Its table is still checked, but
        /// its variables and secrets need not exist.
        enabled: bool = true, boolean().by_hand();
        /// With `true` Weir is not ready (`/readyz` of `[admin]`) while the upstream is not
        /// connected, so that a load balancer sends it no clients. All other upstreams are served
        /// either way.
        required: bool = false, boolean().by_hand();
        /// The replicas of a fleet that run the server: `each` for itself, or `one` at a time for
        /// all of them, for servers that may run only once. When that replica stops or fails,
        /// another one starts the server, and calls wait for it. Not allowed with `prompts_dir` or
        /// `sharing = "client"`. [Several replicas](replicas.md) says how long that takes.
        replicas: Replicas = Replicas::Each, variant().by_hand();
        /// Prefix of the names of its items towards clients; formed like the name of the table, and
        /// unique. Rules use the name of the table, whatever the prefix.
        ///
        /// ```toml
        /// prefix = "library"
        /// ```
        prefix: Option<String> = None,
            by_hand(ValueShape::Text("string", shape::UPSTREAM_NAME))
                .default_text("the name of the table");
        /// The arguments of `command`, one string each. `${file:PATH}` in one of them is the
        /// content of a secret's file; where the server reads it from a variable, `env` is the
        /// better place, since `ps` shows arguments to all users of the machine.
        ///
        /// ```toml
        /// args = ["-y", "@modelcontextprotocol/server-everything"]
        /// ```
        args: Vec<String> = Vec::new(),
            strings(ValueShape::Text("string", shape::ANYTHING), value::text_or_empty);
        /// Environment variables to set for `command`. Each value is a secret: a string, or one of
        /// `{ env = "VAR" }`, `{ file = "path" }`, `{ command = ["…"] }`.
        ///
        /// ```toml
        /// env = { LOG_LEVEL = "info", API_KEY = { env = "EVERYTHING_KEY" } }
        /// ```
        env: Vec<(String, Secret)> = Vec::new(),
            by_hand(ValueShape::map(shape::VARIABLE_NAME, ValueShape::Secret(shape::ANYTHING)))
                .written(|_| shape::empty_table());
        /// Variables of Weir's own environment to pass on to `command`: names, and with a `*` at
        /// the end the beginning of names. A lone `*` is an error: the server would get the tokens
        /// of all others. Those of `[defaults]` are passed on, too. Without this key a program gets
        /// of the user `PATH`, `HOME`, `USER`, `LOGNAME`, `SHELL`, `TERM`, `TMPDIR`, `LANG`,
        /// `LANGUAGE`, `LC_*`, `TZ` and `XDG_*`; of the network `HTTP_PROXY`, `HTTPS_PROXY`,
        /// `ALL_PROXY`, `NO_PROXY`, `http_proxy`, `https_proxy`, `all_proxy`, `no_proxy`,
        /// `SSL_CERT_FILE`, `SSL_CERT_DIR`, `NODE_EXTRA_CA_CERTS`, `NODE_USE_SYSTEM_CA`,
        /// `NODE_USE_ENV_PROXY`, `REQUESTS_CA_BUNDLE`, `CURL_CA_BUNDLE`, `UV_SYSTEM_CERTS` and
        /// `UV_NATIVE_TLS`; of tools `NVM_DIR`, `FNM_DIR`, `VOLTA_HOME`, `ASDF_*`, `MISE_*`,
        /// `PYENV_ROOT`, `CARGO_HOME`, `HOMEBREW_PREFIX`, `UV_CACHE_DIR`, `DOCKER_HOST`,
        /// `DOCKER_CONTEXT`, `DOCKER_CONFIG` and `KUBECONFIG`; and no others. A variable of a
        /// family whose name is like that of a secret is not among them. The URL of a proxy may
        /// have a password in it: `env = { HTTPS_PROXY = "" }` keeps it from a program.
        ///
        /// ```toml
        /// pass_env = ["NODE_OPTIONS"]
        /// ```
        pass_env: Vec<String> = Vec::new(), passed_variables();
        /// The working directory of `command`. A relative path starts from the folder of the file
        /// that contains it.
        cwd: Option<PathBuf> = None,
            by_hand(FOLDER).default_text("the working directory of Weir");
        /// Headers to send with every request to `url`. Each value is a secret, as in `env`.
        /// Headers of the protocol itself, such as `Host`, `Content-Type` and all those that begin
        /// with `Mcp-`, cannot be set.
        ///
        /// ```toml
        /// headers = { X-Team = { file = "secrets/team" } }
        /// ```
        headers: HeaderMap = HeaderMap::new(),
            by_hand(ValueShape::map(
                shape::header_name(&headers::OWN_HEADERS),
                ValueShape::Secret(shape::HEADER_VALUE),
            ))
            .written(|_| shape::empty_table());
        /// Credentials of Weir for the server at `url`: an `Authorization` header, made from the
        /// following keys. Not allowed together with an `Authorization` in `headers`.
        ///
        /// ```toml
        /// auth = { type = "bearer", token = { command = ["gh", "auth", "token"] } }
        /// ```
        auth: Option<HeaderValue> = None, by_hand(ValueShape::Table(CredentialKeys::keys()));
        /// TLS settings for the origin of `url` (scheme, host and port), also as its own
        /// authorization server. The files are read with the configuration.
        tls: Option<TlsSettings> = None, by_hand(ValueShape::Table(UpstreamTlsKeys::keys()));
        /// Transport to the server at `url`: `http` is Streamable HTTP, `sse` the older HTTP+SSE
        /// transport of 2024-11-05, which works with `era` `auto` or `legacy` only. `auto` tries
        /// the first, then the second.
        transport: Option<HttpTransport> = None, choice(&TRANSPORTS);
    }
}

/// Source of an upstream, with what belongs to it.
pub(super) struct ReadSource {
    pub(super) source: Option<UpstreamSource>,
    /// Variables of Weir's environment that a process gets in addition.
    pub(super) pass_env: Vec<String>,
    /// Contents of the secret files in `args` and `url`.
    pub(super) file_contents: Vec<Secret>,
}

/// Reads the one of three keys that names the source, and the keys that belong to it.
pub(super) fn source(
    t: &TableReader<'_>,
    context: &LoadContext<'_>,
    (sign_in, egress): (&SignInSettings, &Egress),
    login_path: LoginPath,
    used: bool,
) -> ReadSource {
    let kind = source_key(t);
    let UpstreamKeys { command, args, pass_env, url, transport, .. } = UpstreamKeys::read(t);
    t.redact_arguments("command", true);
    t.redact_arguments("args", false);
    t.redact_path("url");
    let dir = folder(t, "prompts_dir", context.on_disk && used);
    let env = env(t, &context.resolver, used);
    let cwd = folder(t, "cwd", context.on_disk && used);
    let mut headers = headers::read_headers(t, &context.resolver, used);
    let account = match auth::read_auth(t, url.as_ref(), sign_in, &context.resolver, used) {
        Some(UpstreamCredentials::Account(account)) => Some(account),
        Some(UpstreamCredentials::Header(value)) => {
            headers.insert(AUTHORIZATION, value);
            None
        }
        None => None,
    };
    let egress = egress.with_tls(read_tls(t, context, used));
    if t.has("tls") && url.as_ref().is_some_and(|url| url.scheme_str() != Some("https")) {
        let what = "tls protects nothing, because url is not an https:// URL";
        t.error("tls", ValueError::new(what, "correct url, or remove tls"));
    }
    for key in ["env", "headers", "auth"] {
        t.redact_unless_table(key);
    }
    let file_contents = [t.file_contents("args"), t.file_contents("url")].concat();
    if context.is_check && kind == Some("command") && !file_contents.is_empty() {
        let what = "`ps` shows the arguments of a process to all users of this machine, and one of \
                    these holds a secret";
        let remedy = "move it to env, if the server can read it from there";
        t.warning("args", ValueError::new(what, remedy));
    }
    let source = match kind {
        None => None,
        Some("prompts_dir") => dir.map(|dir| UpstreamSource::Library { dir }),
        Some("command") => command.map(|program| {
            let args = args.into_iter().map(Secret::from).collect();
            UpstreamSource::Process(ChildCommand {
                program,
                display_name: t.source_text("command"),
                args,
                arg_secrets: t.file_contents("args"),
                env,
                login_path,
                cwd,
                ..ChildCommand::default()
            })
        }),
        Some(_) => url.map(|url| UpstreamSource::Http { url, headers, account, egress, transport }),
    };
    ReadSource { source, pass_env, file_contents }
}

/// Returns the one key that names the source; `None` if there are none or several. These are
/// reported, and so are keys that belong to another source.
fn source_key(t: &TableReader<'_>) -> Option<&'static str> {
    let mut written = Vec::new();
    let mut belonging = Vec::new();
    for (source, keys) in SOURCES {
        written.extend(t.has(source).then_some(source));
        belonging.extend(keys.iter().filter(|key| t.has(key)).map(|key| (source, *key)));
    }
    match written[..] {
        [kind] => {
            for (owner, key) in belonging.into_iter().filter(|(owner, _)| *owner != kind) {
                let what = format!("goes with {owner}, not with {kind}");
                t.error(key, ValueError::new(what, "remove it"));
            }
            Some(kind)
        }
        [first, second, ..] => {
            let what = format!("{first} says already where this upstream is");
            let remedy = "keep one of the two: each is a different upstream";
            t.error(second, ValueError::new(what, remedy));
            None
        }
        [] => {
            let sources = || SOURCES.map(|(source, _)| source);
            let is_meant = |key: &SpannedName<'_>| nearest(key.get_ref(), sources()).is_some();
            // A key that is spelled wrong has an error of its own, which names the right one.
            if !t.keys().iter().any(is_meant) {
                let remedy = "write exactly one of prompts_dir, command, url";
                t.table_error(ValueError::new("nothing says where this upstream is", remedy));
            }
            None
        }
    }
}

/// Reads the path of a folder; a relative one starts from the folder of its file. A missing folder
/// is a warning, because it may be mounted or made later, and the other upstreams are served until
/// then.
fn folder<'a>(t: &TableReader<'a>, key: &'a str, must_be: bool) -> Option<PathBuf> {
    let text = t.read(key, value::text)?;
    let folder = t.base_folder(key).join(&text);
    // The path with the dot exists only if the folder may be entered.
    match std::fs::metadata(folder.join(".")) {
        Ok(_) => {}
        Err(error) if must_be && error.kind() == std::io::ErrorKind::PermissionDenied => {
            let what = format!("the folder {} may not be entered", t.source_text(key));
            t.warning(key, ValueError::new(what, "check its permissions"));
        }
        Err(_) if must_be => {
            let what = format!("there is no folder {}", t.source_text(key));
            // Only shells expand `~`.
            let remedy = match text.starts_with("~/") {
                true => "write ${HOME}/ for ~/, which means nothing here",
                false => "make it, or correct the path: it starts from the folder of this file",
            };
            t.warning(key, ValueError::new(what, remedy));
        }
        Err(_) => {}
    }
    Some(folder)
}

/// Reads the environment variables to set.
fn env<'a>(
    t: &TableReader<'a>,
    resolver: &SecretResolver<'_>,
    used: bool,
) -> Vec<(String, Secret)> {
    t.table("env", |t| {
        let read = |name: SpannedName<'a>| {
            let value = secrets::read_secret(t, name.get_ref(), resolver, used);
            match variable(name.get_ref(), name.span()) {
                Ok(name) => Some((name, value?)),
                Err(error) => {
                    t.error(name.get_ref(), error);
                    None
                }
            }
        };
        t.keys().into_iter().filter_map(read).collect()
    })
}

fn variable(name: &str, place: Span) -> Parsed<String> {
    match name.is_empty() || name.contains(['=', '\0']) {
        true => {
            Err(ValueError::new("this cannot name a variable", "write a name like HTTPS_PROXY")
                .at(place))
        }
        false => Ok(name.to_owned()),
    }
}

/// Keys that name the source of an upstream, each with the keys that belong to it.
pub(crate) const SOURCES: [(&str, &[&str]); 3] = [
    ("prompts_dir", &[]),
    ("command", &["args", "env", "pass_env", "cwd"]),
    ("url", &["headers", "auth", "tls", "transport"]),
];

const FOLDER: ValueShape = ValueShape::Text("path", shape::NOT_EMPTY);

const TRANSPORTS: [(&str, Option<HttpTransport>); 3] =
    [("auto", None), ("http", Some(HttpTransport::Http)), ("sse", Some(HttpTransport::Sse))];
