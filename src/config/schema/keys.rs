//! Table of keys, in the order of the example, with the keys of `[server]`, `[protocol]` and
//! `[log]`.

use serde_json::json;

use super::shape::{self, ValueShape, duration, size, word};
use super::{
    KeySpec, access_keys, admin_keys, audit_keys, guard_keys, limits_keys, naming_keys,
    tuning_keys, upstream_keys,
};
use crate::config::sections::{
    CONNECTIONS, HEADERS, LOG_FORMATS, LOG_LEVELS, PAGE_SIZES, PER_CLIENT, VERSIONS,
};
use crate::config::tls::CLIENT_CERTIFICATES;
use crate::config::{LogConfig, ProtocolConfig, ServerConfig};

pub(super) fn all() -> Vec<KeySpec> {
    vec![
        include(),
        KeySpec::new(
            "server",
            ValueShape::table(server()),
            "The HTTP endpoint that clients connect to.",
        ),
        KeySpec::new("protocol", ValueShape::table(protocol()), "Settings of MCP towards clients."),
        KeySpec::new(
            "naming",
            ValueShape::table(naming_keys::naming()),
            "Names of prompts and tools towards clients. Rules, limits, renames, approved \
             definitions and the `item` of the audit log use the original name; `weir check` lists \
             the names that are altered.",
        ),
        tuning_keys::defaults(),
        upstream_keys::upstreams(),
        guard_keys::guard(),
        access_keys::auth(),
        access_keys::roles(),
        access_keys::clients(),
        limits_keys::limits(),
        KeySpec::new("log", ValueShape::table(log()), "Weir's own log, always on standard error."),
        admin_keys::admin(),
        audit_keys::audit(),
        audit_keys::state(),
    ]
}

fn include() -> KeySpec {
    let files = ValueShape::list(ValueShape::Text("path", shape::FILES));
    KeySpec::new(
        "include",
        files,
        "Further files that belong to this configuration, each path relative to the folder of this \
         file. A `*` is allowed in the name of a file, not of a folder; the matching files are \
         read in the order of their names, without those that begin with a dot. A pattern may \
         match nothing; a file that is named without `*` must exist.",
    )
    .default(json!([]))
    .example("include = [\"conf.d/*.toml\"]")
}

// === Server and protocol ===

fn server() -> Vec<KeySpec> {
    let default = ServerConfig::default();
    vec![
        KeySpec::new(
            "listen",
            ValueShape::Text("IP address and port", shape::SOCKET),
            "The address and port to listen on. Any address other than a loopback address \
             (`127.0.0.1`, `[::1]`) can be reached from the network: then clients need keys, and \
             `public_url` or `allowed_hosts` must be set.",
        )
        .default(default.listen.to_string())
        .example("listen = \"0.0.0.0:8642\""),
        KeySpec::new(
            "path",
            ValueShape::Text("path of a URL", shape::PATH),
            "The path of the MCP endpoint: by default clients connect to \
             `http://127.0.0.1:8642/mcp`.",
        )
        .default(default.path),
        KeySpec::new(
            "public_url",
            ValueShape::Text("http or https URL", shape::URL_WITHOUT_QUERY),
            "The URL under which clients reach Weir, if it differs from the address above: set it \
             when Weir runs behind a reverse proxy. Its host is accepted as `Host` in addition to \
             `allowed_hosts`. It has no query.",
        )
        .example("public_url = \"https://mcp.example.com\""),
        KeySpec::new(
            "allowed_hosts",
            ValueShape::list(ValueShape::Text("host, or host:port", shape::HOST)),
            "Values of the `Host` header that are accepted, in addition to the host of \
             `public_url`; other values get 403. A value without a port matches every port. On a \
             loopback address the loopback names are always accepted.",
        )
        .default(json!(default.allowed_hosts))
        .example("allowed_hosts = [\"weir.lan\", \"10.0.0.5:8642\"]"),
        KeySpec::new(
            "allowed_origins",
            ValueShape::list(ValueShape::Text("origin", shape::ORIGIN)),
            "Values of the `Origin` header that are accepted, for clients that run in a browser; \
             requests with other values get 403, and requests without the header are accepted. On \
             a loopback address origins with loopback names are always accepted.",
        )
        .default(json!(default.allowed_origins))
        .example("allowed_origins = [\"https://app.example.com\"]"),
        KeySpec::new(
            "max_body",
            ValueShape::Size,
            "The largest message from a client; a larger one gets 413. Raise it for tools that \
             take large arguments.",
        )
        .default(size(default.max_body)),
        KeySpec::new(
            "max_head",
            ValueShape::Size,
            "The largest head of a request, all header fields together; a larger one gets 431. \
             Values below 8 KiB count as 8 KiB. Raise it for tokens with very many claims.",
        )
        .default(size(default.max_head)),
        KeySpec::new(
            "max_headers",
            ValueShape::Count(HEADERS),
            "Maximum number of header fields of a request; a request with more gets 431.",
        )
        .default(default.max_headers),
        KeySpec::new(
            "max_reply",
            ValueShape::Size,
            "The largest response that is buffered because Weir has to read all of it first, or \
             has to send it in one piece: over `weir stdio` and HTTP+SSE, in batches, between two \
             eras, and with `resumable`. A larger response ends its call with error 5130. Other \
             responses are streamed as they arrive, up to the upstream's `limits.max_message`.",
        )
        .default(size(default.max_reply)),
        KeySpec::new(
            "max_buffered",
            ValueShape::Size,
            "The most bytes that Weir buffers for all clients together: requests in progress, \
             messages of upstreams while they are assembled and until they are passed on, and \
             responses and notifications that wait to be read. A message of at most 16 KiB always \
             fits, and most of these are not counted. From 85 % on, idle connections are closed \
             after 5 s; from 92 % on, connections are closed after their response and no stream is \
             opened; from 95 % on, larger messages of clients get 503, and calls with larger \
             responses end with error 5130; a message that is already on its way to a client and \
             does not fit is replaced by an error. The upstream of such a call is not stopped: it \
             has executed the call.",
        )
        .default(size(default.max_buffered)),
        KeySpec::new(
            "max_connections",
            ValueShape::Count(CONNECTIONS),
            "Maximum number of open connections; further ones wait until one is closed, and \
             connections that have had no request for a second are closed for them. Never more \
             than half of the file descriptors that the process may have: Weir raises its soft \
             limit as far as this number needs and the hard limit allows.",
        )
        .default(default.max_connections),
        timeouts(),
        per_client(),
        KeySpec::new(
            "shutdown_delay",
            ValueShape::Duration,
            "Time after SIGTERM, SIGINT or SIGQUIT in which Weir serves as before but is no longer \
             ready, so that a load balancer can notice. Without it Weir stops accepting requests \
             at once.",
        )
        .example("shutdown_delay = \"5s\""),
        KeySpec::new(
            "shutdown_grace",
            ValueShape::Duration,
            "Time that calls in flight may continue after SIGTERM, SIGINT or SIGQUIT, before they \
             are aborted.",
        )
        .default(duration(default.shutdown_grace)),
        KeySpec::new(
            "watch",
            ValueShape::Boolean,
            "With `true` Weir reloads the configuration when one of its files, or a file that \
             contains a secret, changes; SIGHUP and `weir reload` reload it in any case.",
        )
        .default(default.watch),
        tls(),
    ]
}

fn timeouts() -> KeySpec {
    let default = ServerConfig::default().timeouts;
    let time = |name, time, description| {
        KeySpec::new(name, ValueShape::Duration, description).default(duration(time))
    };
    let keys = vec![
        time("handshake", default.handshake, "For the TLS handshake."),
        time(
            "head",
            default.head,
            "For a request's head, counted from its first byte or from the start of the \
             connection.",
        ),
        time("body", default.body, "For a request's body; after that the request gets 408."),
        time(
            "write",
            default.write,
            "While the client reads none of the bytes that are sent to it.",
        ),
        time("idle", default.idle, "Between two requests."),
    ];
    KeySpec::new(
        "timeouts",
        ValueShape::table(keys),
        "Time limits for a client on one connection; the connection is closed when one of them is \
         exceeded.",
    )
}

fn per_client() -> KeySpec {
    let default = ServerConfig::default().per_client;
    let count = |name, count: usize, description| {
        KeySpec::new(name, ValueShape::Count(PER_CLIENT), description).default(count)
    };
    let keys = vec![
        count("calls", default.calls, "Requests in progress."),
        count(
            "waiting",
            default.waiting,
            "Requests that wait because `calls` is reached; further ones are refused at once.",
        ),
        KeySpec::new(
            "wait",
            ValueShape::Duration,
            "Time that such a request waits; after that it is refused.",
        )
        .default(duration(default.wait)),
        count(
            "streams",
            default.streams,
            "Streams of `subscriptions/listen`, in revision 2026-07-28, which has no sessions.",
        ),
        count(
            "sessions",
            default.sessions,
            "Sessions, in the revisions that have them. When a client opens one more, its session \
             that has been idle longest ends.",
        ),
    ];
    KeySpec::new(
        "per_client",
        ValueShape::table(keys),
        "Limits on what one client may have open at a time. All clients without credentials \
         together count as 16 clients. For rates there is `[[limits]]`.",
    )
}

fn tls() -> KeySpec {
    let file = || ValueShape::Text("path", shape::NOT_EMPTY);
    let keys = vec![
        KeySpec::new(
            "cert",
            file(),
            "The server's certificate with its chain up to the CA, in PEM. The file is read again \
             when it changes.",
        )
        .required(),
        KeySpec::new(
            "key",
            ValueShape::Secret(shape::ANYTHING),
            "The certificate's private key, in PEM; a secret. A key in a `file` is read again when \
             the file changes.",
        )
        .required(),
        KeySpec::new(
            "client_ca",
            file(),
            "The CAs of the clients, in PEM: Weir requests a certificate from clients, and one of \
             these CAs must have signed it. `clients.<name>.certificates` says which client a \
             certificate belongs to. The file is read again when it changes; a connection whose \
             certificate has expired, or was signed by a CA that is no longer in the file, ends \
             within five seconds, and from the expiry on no request on it is served. TLS sessions \
             are not resumed when this key is set.",
        ),
        KeySpec::new(
            "client_certificates",
            ValueShape::choice(&CLIENT_CERTIFICATES),
            "With `optional` a client may connect without a certificate and present a key instead. \
             A client that presents a key is the client of that key, whatever its certificate \
             says.",
        )
        .default(word(&CLIENT_CERTIFICATES, &false)),
    ];
    KeySpec::new(
        "tls",
        ValueShape::table(keys),
        "TLS towards clients: the endpoint is then `https`. Without it, put a reverse proxy with \
         TLS in front of Weir wherever others can read the traffic.",
    )
    .example("[server.tls]\ncert = \"/etc/weir/tls.crt\"\nkey = { file = \"/etc/weir/tls.key\" }")
}

fn protocol() -> Vec<KeySpec> {
    let default = ProtocolConfig::default();
    let mut versions = ValueShape::list(ValueShape::Choice(VERSIONS.to_vec()));
    if let ValueShape::List { count, .. } = &mut versions {
        *count = (1, None);
    }
    vec![
        KeySpec::new(
            "versions",
            versions,
            "The revisions of MCP that clients may use, in any order; at least one. Keep the \
             default unless you want to refuse a revision.",
        )
        .default(json!(default.versions))
        .example("versions = [\"2026-07-28\", \"2025-11-25\"]"),
        KeySpec::new(
            "legacy_sse",
            ValueShape::Boolean,
            "Also serves the deprecated HTTP+SSE transport of 2024-11-05, at `GET /sse` and `POST \
             /messages`, for clients that support nothing newer. `versions` must then contain a \
             revision before 2026-07-28. Behind a proxy that adds a path in front of these two, \
             `public_url` must contain that path.",
        )
        .default(default.legacy_sse),
        KeySpec::new(
            "resumable",
            ValueShape::Boolean,
            "Lets clients of revisions before 2026-07-28 resume an event stream after a lost \
             connection (`Last-Event-ID`): the notifications and the response of a call are stored \
             for them, up to 16 MiB per session. A response is then buffered until it is complete, \
             and is sent as an event unless it is available at once. Clients of 2025-11-25 get an \
             event id to resume from as soon as a stream begins.",
        )
        .default(default.resumable),
        KeySpec::new(
            "session_ttl",
            ValueShape::Duration,
            "Idle time after which a session (`Mcp-Session-Id`, revisions before 2026-07-28) ends; \
             its client then has to start a new one.",
        )
        .default(duration(default.session_ttl)),
        KeySpec::new(
            "sse_keepalive",
            ValueShape::Duration,
            "Interval of the comments that Weir sends on an idle event stream, so that no proxy \
             closes it. Make it shorter than the idle timeout of your proxy.",
        )
        .default(duration(default.sse_keepalive)),
        KeySpec::new(
            "page_size",
            ValueShape::Count(PAGE_SIZES),
            "Maximum number of items on one page of a list.",
        )
        .default(default.page_size),
        KeySpec::new(
            "instructions",
            ValueShape::Boolean,
            "With `true` clients get the instructions of the upstreams of which they see at least \
             one item: a server's text for models about its use. Each text follows its upstream's \
             name; at most the first 8 KiB of each, and 32 KiB in total: a text that does not fit \
             is left out as a whole, and its upstream is named.",
        )
        .default(default.instructions),
    ]
}

fn log() -> Vec<KeySpec> {
    let default = LogConfig::default();
    vec![
        KeySpec::new(
            "level",
            ValueShape::choice(&LOG_LEVELS),
            "The least severe level that is logged. The variable `WEIR_LOG` overrides it, for \
             example `WEIR_LOG=weir=debug`.",
        )
        .default(word(&LOG_LEVELS, &default.level)),
        KeySpec::new(
            "format",
            ValueShape::choice(&LOG_FORMATS),
            "`pretty` is for people, `json` for machines; `auto` is `pretty` on a terminal and \
             `json` elsewhere.",
        )
        .default(word(&LOG_FORMATS, &default.format)),
    ]
}
