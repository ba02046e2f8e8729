//! The table of keys, in the order of the example: all but what an upstream's table holds.

use serde_json::{Value, json};

use super::shape::{self, Shape, duration, size};
use super::{
    Key, admin_keys, audit_keys, guard_keys, limits_keys, naming_keys, oidc_keys, tuning_keys,
    upstream_keys,
};
use crate::config::access::{AUTH_MODES, KINDS};
use crate::config::sections::{
    CONNECTIONS, HEADERS, LOG_FORMATS, LOG_LEVELS, PAGE_SIZES, PER_CLIENT, VERSIONS,
};
use crate::config::tls::CLIENT_CERTIFICATES;
use crate::config::{Auth, Log, Protocol, Server};

pub(super) fn all() -> Vec<Key> {
    vec![
        include(),
        Key::new("server", Shape::table(server()), "What clients connect to over HTTP."),
        Key::new("protocol", Shape::table(protocol()), "How MCP is spoken with clients."),
        Key::new(
            "naming",
            Shape::table(naming_keys::naming()),
            "How prompts and tools are named towards clients. Rules, limits, renames, approved definitions and the \
             audit log's `item` go by the original name; `weir check` lists the names that are altered.",
        ),
        tuning_keys::defaults(),
        upstream_keys::upstreams(),
        guard_keys::guard(),
        Key::new(
            "auth",
            Shape::table(auth()),
            "Who may come in over HTTP without a key, or with a token of somebody else's. The client of `weir stdio` is whoever starts it, and needs none.",
        ),
        roles(),
        clients(),
        limits_keys::limits(),
        Key::new(
            "log",
            Shape::table(log()),
            "What Weir tells of itself, always on standard error.",
        ),
        admin_keys::admin(),
        audit_keys::audit(),
        audit_keys::state(),
    ]
}

/// The word that stands for a choice.
pub(super) fn word<T: PartialEq>(choices: &[(&'static str, T)], choice: &T) -> Value {
    choices.iter().find(|(_, it)| it == choice).map_or(Value::Null, |(word, _)| (*word).into())
}

fn include() -> Key {
    let files = Shape::list(Shape::Text("path", shape::FILES));
    Key::new(
        "include",
        files,
        "Further files that belong to this configuration, each relative to the folder of this file. A `*` may \
         stand in the name of a file, not of a folder; files are read in the order of their names, without those \
         that begin with a dot. A pattern may match nothing; a file that is named without `*` has to be there.",
    )
    .or(json!([]))
    .example("include = [\"conf.d/*.toml\"]")
}

// === What clients see ===

fn server() -> Vec<Key> {
    let default = Server::default();
    vec![
        Key::new(
            "listen",
            Shape::Text("IP address and port", shape::SOCKET),
            "The address and port to listen on. Anything but a loopback address (`127.0.0.1`, `[::1]`) can be reached \
             from the network: then clients need keys, and `public_url` or `allowed_hosts` must be written.",
        )
        .or(default.listen.to_string())
        .example("listen = \"0.0.0.0:8642\""),
        Key::new(
            "path",
            Shape::Text("path of a URL", shape::PATH),
            "The path of the MCP endpoint: by default clients connect to `http://127.0.0.1:8642/mcp`.",
        )
        .or(default.path),
        Key::new(
            "public_url",
            Shape::Text("http or https URL", shape::URL_WITHOUT_QUERY),
            "The URL under which clients reach Weir, if it is not the address itself: set it when a reverse proxy \
             stands in front. Its host is accepted as `Host` beside `allowed_hosts`. Without a query.",
        )
        .example("public_url = \"https://mcp.example.com\""),
        Key::new(
            "allowed_hosts",
            Shape::list(Shape::Text("host, or host:port", shape::HOST)),
            "Values of the `Host` header that are accepted, beside that of `public_url`; others get 403. One without a \
             port is good for every port. On a loopback address the loopback names are accepted anyway.",
        )
        .or(json!(default.allowed_hosts))
        .example("allowed_hosts = [\"weir.lan\", \"10.0.0.5:8642\"]"),
        Key::new(
            "allowed_origins",
            Shape::list(Shape::Text("origin", shape::ORIGIN)),
            "Values of the `Origin` header that are accepted, for clients that run in a browser; others get 403, and \
             requests without the header pass. On a loopback address pages of loopback names are accepted anyway.",
        )
        .or(json!(default.allowed_origins))
        .example("allowed_origins = [\"https://app.example.com\"]"),
        Key::new(
            "max_body",
            Shape::Size,
            "The largest message from a client; a larger one gets 413. Raise it for tools that take big arguments.",
        )
        .or(size(default.max_body)),
        Key::new(
            "max_head",
            Shape::Size,
            "The largest head of a request, all header fields together; a larger one gets 431. Less than 8 KiB is 8 KiB. \
             Raise it for tokens with very many claims.",
        )
        .or(size(default.max_head)),
        Key::new(
            "max_headers",
            Shape::Count(HEADERS),
            "The most header fields of a request; one with more gets 431.",
        )
        .or(default.max_headers),
        Key::new(
            "max_reply",
            Shape::Size,
            "The largest reply that is held because it has to be read first, or goes out in one piece: over `weir stdio` and \
             HTTP+SSE, in batches, from one era to the other, and where `resumable` is on. A larger one ends its call with error 5130. \
             Others pass as they arrive, up to their upstream's `limits.max_message`.",
        )
        .or(size(default.max_reply)),
        Key::new(
            "max_buffered",
            Shape::Size,
            "The most bytes that are held for all clients together: requests that are being worked on, messages of upstreams \
             while they are put together and until they are passed on, and answers and notes that wait to be read. What has no \
             more than 16 KiB always has room, and most of it is not even counted. From 85 % on idle connections are closed after 5 s, from 92 % on connections end \
             with their answer and no stream is opened, from 95 % on larger messages of clients get 503, and calls whose \
             replies are larger end with error 5130; what was on its way out and finds no room is replaced by an error. \
             It does not stop the upstream of a call: that was carried out.",
        )
        .or(size(default.max_buffered)),
        Key::new(
            "max_connections",
            Shape::Count(CONNECTIONS),
            "The most connections at a time; further ones wait until one is closed, and those that nothing has been \
             asked on for a second are closed for them. No more than half of the file \
             descriptors that the process may have: Weir raises its soft limit to what this takes, as far as the hard one \
             allows.",
        )
        .or(default.max_connections),
        timeouts(),
        per_client(),
        Key::new(
            "shutdown_delay",
            Shape::Duration,
            "How long Weir goes on as before after SIGTERM, SIGINT or SIGQUIT, but is no longer ready: time for a load \
             balancer to hear of it. Without it Weir stops taking requests at once.",
        )
        .example("shutdown_delay = \"5s\""),
        Key::new(
            "shutdown_grace",
            Shape::Duration,
            "How long calls that are under way may run on after SIGTERM, SIGINT or SIGQUIT, before they are broken off.",
        )
        .or(duration(default.shutdown_grace)),
        Key::new(
            "watch",
            Shape::Boolean,
            "Whether a change of the configuration's files, or of a file that holds a secret, is taken up by itself; SIGHUP \
             and `weir reload` have them read again in any case.",
        )
        .or(default.watch),
        tls(),
    ]
}

fn timeouts() -> Key {
    let default = Server::default().timeouts;
    let time = |name, time, meaning| Key::new(name, Shape::Duration, meaning).or(duration(time));
    let keys = vec![
        time("handshake", default.handshake, "For the TLS handshake."),
        time(
            "head",
            default.head,
            "For a request's head, counted from its first byte or from the beginning of the connection.",
        ),
        time("body", default.body, "For a request's body; then it gets 408."),
        time("write", default.write, "While it takes nothing of what is written to it."),
        time("idle", default.idle, "Between two requests."),
    ];
    Key::new(
        "timeouts",
        Shape::table(keys),
        "How long a client may take on a connection, which is closed then.",
    )
}

fn per_client() -> Key {
    let default = Server::default().per_client;
    let count =
        |name, count: usize, meaning| Key::new(name, Shape::Count(PER_CLIENT), meaning).or(count);
    let keys = vec![
        count("calls", default.calls, "Requests that are being worked on."),
        count(
            "waiting",
            default.waiting,
            "Requests that wait for that; further ones are refused at once.",
        ),
        Key::new("wait", Shape::Duration, "How long they wait; then they are refused.")
            .or(duration(default.wait)),
        count(
            "streams",
            default.streams,
            "Streams of changes, in the revision that has them without sessions.",
        ),
        count(
            "sessions",
            default.sessions,
            "Sessions, in the revisions that have them. For one more the one that is idle longest ends.",
        ),
    ];
    Key::new(
        "per_client",
        Shape::table(keys),
        "What one client may have at a time. All clients without credentials together count as 16. For how \
         much in which time there is `[[limits]]`.",
    )
}

fn tls() -> Key {
    let file = || Shape::Text("path", shape::NOT_EMPTY);
    let keys = vec![
        Key::new(
            "cert",
            file(),
            "The server's certificate and those between it and its CA, in PEM. Read again when the file changes.",
        )
        .required(),
        Key::new(
            "key",
            Shape::Secret(shape::ANYTHING),
            "The certificate's private key, in PEM; a secret. One in a `file` is read again when the file changes.",
        )
        .required(),
        Key::new(
            "client_ca",
            file(),
            "The CAs of the clients, in PEM: clients are asked for a certificate, and one of these CAs has to have \
             signed it. Whose it is, `clients.<name>.certificates` says. Read again when the file changes; a connection \
             whose certificate has expired, or was signed by a CA that is not in the file any more, ends within five \
             seconds, and no request on it is served before that once the certificate has expired. TLS sessions are \
             not resumed where this is set.",
        ),
        Key::new(
            "client_certificates",
            Shape::choice(&CLIENT_CERTIFICATES),
            "Whether a client without a certificate may connect, and show a key instead. A client that shows a key \
             is whose key it is, whatever its certificate says.",
        )
        .or(word(&CLIENT_CERTIFICATES, &false)),
    ];
    Key::new(
        "tls",
        Shape::table(keys),
        "TLS towards clients: the endpoint is then `https`. Without it put a reverse proxy in front where others \
         can listen on the way.",
    )
    .example("[server.tls]\ncert = \"/etc/weir/tls.crt\"\nkey = { file = \"/etc/weir/tls.key\" }")
}

fn protocol() -> Vec<Key> {
    let default = Protocol::default();
    let mut versions = Shape::list(Shape::Choice(VERSIONS.to_vec()));
    if let Shape::List { count, .. } = &mut versions {
        *count = (1, None);
    }
    vec![
        Key::new(
            "versions",
            versions,
            "The revisions of MCP that clients may speak, in any order; at least one. Leave it as it is unless a \
             revision is to be refused.",
        )
        .or(json!(default.versions))
        .example("versions = [\"2026-07-28\", \"2025-11-25\"]"),
        Key::new(
            "legacy_sse",
            Shape::Boolean,
            "Also serves the deprecated HTTP+SSE pair of 2024-11-05, at `GET /sse` and `POST /messages`, for clients \
             that know nothing newer. `versions` must then hold a revision before 2026-07-28. Behind a proxy that puts \
             a path before the two, `public_url` must have that path, too.",
        )
        .or(default.legacy_sse),
        Key::new(
            "resumable",
            Shape::Boolean,
            "Lets clients before 2026-07-28 take up an event stream again that they have lost (`Last-Event-ID`): a \
             call's notes and its answer are kept for them, up to 16 MiB for a session. An answer is then held until \
             it is whole, and goes out as an event unless it is there at once. Clients of 2025-11-25 are told where to \
             come back as soon as a stream begins.",
        )
        .or(default.resumable),
        Key::new(
            "session_ttl",
            Shape::Duration,
            "How long a session of a client before 2026-07-28 (`Mcp-Session-Id`) may be idle until it is forgotten; \
             its client then has to begin a new one.",
        )
        .or(duration(default.session_ttl)),
        Key::new(
            "sse_keepalive",
            Shape::Duration,
            "How often a silent event stream gets a comment, so that nobody on the way takes it for dead. Make it \
             shorter than the idle time of your proxy.",
        )
        .or(duration(default.sse_keepalive)),
        Key::new("page_size", Shape::Count(PAGE_SIZES), "The most items on one page of a list.")
            .or(default.page_size),
        Key::new(
            "instructions",
            Shape::Boolean,
            "Whether clients get the instructions of the upstreams of which they see something: what a server tells \
             models about its use. Each stands under the upstream's name; of one the first 8 KiB, and 32 KiB in all: \
             what does not fit is left out whole, and named.",
        )
        .or(default.instructions),
    ]
}

fn log() -> Vec<Key> {
    let default = Log::default();
    vec![
        Key::new(
            "level",
            Shape::choice(&LOG_LEVELS),
            "The least severe level that is logged. The variable `WEIR_LOG` overrides it, for example \
             `WEIR_LOG=weir=debug`.",
        )
        .or(word(&LOG_LEVELS, &default.level)),
        Key::new(
            "format",
            Shape::choice(&LOG_FORMATS),
            "`pretty` is for people, `json` for machines; `auto` is `pretty` on a terminal and `json` elsewhere.",
        )
        .or(word(&LOG_FORMATS, &default.format)),
    ]
}

// === Who may do what ===

fn auth() -> Vec<Key> {
    let default = Auth::default();
    vec![
        Key::new(
            "mode",
            Shape::choice(&AUTH_MODES),
            "`required`: every request needs a client's key or certificate, or a token. `anonymous`: requests without \
             a key are let in as `anonymous_role`; on an address that the network can reach this is an error unless Weir is started with \
             `--allow-anonymous-network`. `auto`: `anonymous` on a loopback address as long as no client and no \
             identity provider is defined, otherwise `required`.",
        )
        .or(word(&AUTH_MODES, &default.mode)),
        Key::new(
            "anonymous_role",
            Shape::Text("name of a role", shape::PLAIN_NAME),
            "The role of whoever comes in without a key: a `[roles.<name>]` table, or `local`.",
        )
        .or(default.anonymous_role),
        oidc_keys::providers(),
    ]
}

fn roles() -> Key {
    let rules = Shape::table(rules());
    Key::new(
        "roles",
        Shape::map(shape::PLAIN_NAME, rules),
        "What a role may use. A role is named by `clients.<name>.role` or `auth.anonymous_role`. Patterns are \
         `<upstream>/<original name>`.",
    )
    .example(
        "[roles.developer]\nprompts.allow = [\"*\"]\ntools.allow = [\"github/*\", \"wiki/*\"]\n\
         tools.deny = [\"github/delete_*\"]\nresources.allow = [\"github/repo://public/*\"]",
    )
}

/// What a role may use, or a client that has rules of its own.
fn rules() -> Vec<Key> {
    let meanings = [
        (
            "The prompts that the role may use.",
            "Patterns of prompts that may be used, each `<upstream>/<original name>`, or `*` for all. What no \
             pattern allows is not listed either.",
            "Patterns of prompts that may not be used, although `allow` names them: deny wins.",
        ),
        (
            "The tools that the role may use.",
            "Patterns of tools that may be called, as for prompts.",
            "Patterns of tools that may not be called, although `allow` names them.",
        ),
        (
            "The resources and resource templates that the role may use.",
            "Patterns of resources and resource templates that may be read: `<upstream>/<URI>`. What they are compared with where a URI is not listed: docs/resource-uris.md.",
            "Patterns of resources and templates that may not be read, although `allow` names them.",
        ),
    ];
    let pattern = || Shape::Text("`<upstream>/<original name>`", shape::POLICY_PATTERN);
    let kind = |(kind, (all, allow, deny))| {
        let allow = Key::new("allow", Shape::list(pattern()), allow).or(json!([]));
        let deny = Key::new("deny", Shape::list(pattern()), deny).or(json!([]));
        Key::new(kind, Shape::table(vec![allow, deny]), all)
    };
    KINDS.into_iter().zip(meanings).map(kind).collect()
}

fn clients() -> Key {
    let any_rule = KINDS.map(|kind| json!({ "required": [kind] }));
    let role_or_rules = json!({
        "oneOf": [{ "required": ["role"] }, { "anyOf": any_rule }],
        "anyOf": [{ "required": ["key_sha256"] }, { "required": ["certificates"] }],
    });
    let hashes = Shape::List {
        of: Box::new(Shape::Text("64 hexadecimal digits", shape::HASH)),
        count: (1, Some(2)),
    };
    let mut keys = vec![
        Key::new(
            "key_sha256",
            hashes,
            "The SHA-256 of the client's key: one, or two while you replace a key by a new one. No two clients may \
             share one.",
        )
        .example("key_sha256 = [\"<output of: printf %s KEY | sha256sum>\"]"),
        Key::new(
            "certificates",
            Shape::list(Shape::Text("name in a certificate", shape::CERTIFICATE)),
            "What the client's certificates go by, where `server.tls.client_ca` is set: `dns:<name>` or `uri:<URI>` \
             as in their subjectAltName, or `sha256:<fingerprint>`. Instead of a key, or beside one.",
        )
        .example("certificates = [\"uri:spiffe://example.com/ci\"]"),
        Key::new(
            "role",
            Shape::Text("name of a role", shape::PLAIN_NAME),
            "What the client may use: a `[roles.<name>]` table, or `local`. A client has either a role or rules of its \
             own.",
        ),
        Key::new(
            "expires",
            Shape::Moment,
            "The moment from which the client's keys are refused: date, time and offset, without quotes.",
        )
        .or_else("never")
        .example("expires = 2027-06-30T00:00:00Z"),
    ];
    let own =
        "Rules of the client's own, instead of `role`; what they do not allow, it may not use.";
    keys.extend(rules().into_iter().map(|kind| Key { meaning: own, ..kind }.told_at("roles")));
    Key::new(
        "clients",
        Shape::map(shape::PLAIN_NAME, Shape::Table { keys, rules: role_or_rules }),
        "Somebody who comes in with a key, and what that client may use: `role`, or rules of its own.",
    )
    .example(
        "[clients.alice-laptop]\nkey_sha256 = [\"<output of: printf %s KEY | sha256sum>\"]\nrole = \"developer\"\n\n\
         [clients.ci]                     # rules of its own instead of a role\n\
         key_sha256 = [\"<another hash>\"]\nprompts.allow = [\"house/*\"]",
    )
}
