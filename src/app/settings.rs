//! Conversion of the configuration to the settings of each component.
//!
//! The configuration was checked before: parsing its texts again here cannot fail.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;

use weir_access::catalog::Catalog;
use weir_access::guard::{ArgumentCheck, GuardRules, HiddenText, ResultCheck};
use weir_access::policy::Policy;
use weir_access::{catalog, pins, policy};
use weir_base::memory::memory_budget::MemoryBudget;
use weir_base::secrets::secret::Secret;
use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::hex;
use weir_config as config;
use weir_downstream as downstream;
use weir_downstream::http::ProtectedResource;
use weir_gateway::{Inspectors, SnapshotParts};
use weir_mcp::call::CallContext;
use weir_mcp::name::Naming;
use weir_mcp::pattern::AllowDeny;
use weir_mcp::revision::Era;
use weir_record::audit;
use weir_record::audit::{Audit, PolicyChange, PolicyEvent};
use weir_upstream as upstream;
use weir_upstream::process::environment;
use weir_upstream::{Sharing, Upstream, UpstreamSource};

/// Reason why parsing again cannot fail.
const CHECKED: &str = "the configuration was checked";

/// Longest pause between attempts to reach the replica that runs an upstream.
const MAX_RUNNER_BACKOFF: Duration = Duration::from_secs(2);

/// Limit on what all replicas together do with an upstream that one of them runs: that upstream has
/// limits of its own.
const MAX_OF_REPLICAS: usize = 1 << 16;

/// Largest page of a list, in bytes.
const PAGE_BYTES: usize = 1 << 20;

fn policy_settings(config: &config::Config) -> policy::Settings {
    let mut refusals = policy::Refusals::default();
    for config::ProviderConfig { tokens, blocked, not_before, .. } in &config.providers {
        blocked.iter().for_each(|user| refusals.block(&tokens.name, user));
        not_before.iter().for_each(|time| refusals.refuse_before(&tokens.name, *time));
    }
    policy::Settings {
        anonymous_role: config.auth.anonymous.then(|| config.auth.anonymous_role.clone()),
        local_role: config.auth.anonymous_role.clone(),
        roles: config.roles.clone().into_iter().collect(),
        clients: config.clients.clone(),
        limits: config.limits.clone(),
        providers: config.providers.iter().map(|provider| provider.tokens.clone()).collect(),
        refusals,
    }
}

pub(super) fn catalog(config: &config::Config) -> catalog::Settings {
    catalog::Settings {
        naming: naming(&config.naming),
        exports: config.upstreams.iter().map(|upstream| upstream.exports.clone()).collect(),
        page_items: config.protocol.page_size,
        page_bytes: PAGE_BYTES,
        instructions: config.protocol.instructions,
    }
}

pub(crate) fn naming(naming: &config::NamingConfig) -> Naming {
    let separator = match naming.mode {
        config::NamingMode::Always => Some(naming.separator.as_str()),
        config::NamingMode::None => None,
    };
    Naming::new(separator, naming.characters, naming.max_length)
}

/// Settings of one upstream. `single_client` are the capabilities of the client, if the process
/// serves a single one; `state` has the folders of its cached lists and of sign-ins.
pub(super) fn upstream(
    upstream: &config::UpstreamConfig,
    single_client: Option<&CallContext>,
    state: &config::StateConfig,
) -> upstream::Settings {
    let list_cache_dir = state.catalog_folder();
    let mut settings = upstream::Settings { list_cache_dir, ..upstream.settings.clone() };
    if let UpstreamSource::Http { account: Some(account), .. } = &mut settings.source {
        account.state.clone_from(&state.dir);
    }
    if let Some(caller) = single_client {
        settings.sharing = Sharing::Sole(upstream::declared_capabilities(caller));
    }
    if let UpstreamSource::Process(command) = &mut settings.source {
        environment::inherit(command, &upstream.pass_env, std::env::vars_os());
    }
    settings
}

/// Returns the settings under which all replicas use an upstream that one of them runs.
pub(super) fn on_one_replica(settings: upstream::Settings) -> upstream::Settings {
    let url = Uri::from_str(&format!("http://localhost{}", path_of(settings.name.as_str())));
    let timeouts = upstream::Timeouts {
        // Includes the wait for another replica, if the one that ran it has ended.
        connect: settings.timeouts.startup,
        idle: None,
        ..settings.timeouts
    };
    let max_backoff = settings.retry.max_backoff.min(MAX_RUNNER_BACKOFF);
    let backoff = settings.retry.backoff.min(max_backoff);
    upstream::Settings {
        // The replica that runs it then says which era its server speaks.
        era: Some(Era::Modern),
        timeouts,
        retry: upstream::RetrySettings { backoff, max_backoff, ..settings.retry },
        lazy: false,
        source: UpstreamSource::OnOneReplica {
            url: url.expect("a name is part of a path"),
            settings: settings.clone().into(),
        },
        ..settings
    }
}

/// Returns the configuration of the gateway that runs one upstream of a configuration for all
/// replicas: without policy and checks, which are those of the replica that a client asks.
pub(super) fn of_one_upstream(
    config: &config::Config,
    upstream: &config::UpstreamConfig,
) -> config::Config {
    let mut own = config::Config::default();
    own.server.path = path_of(upstream.name());
    own.server.max_body = config.server.max_body;
    own.server.max_reply = config.server.max_reply;
    own.server.max_buffered = config.server.max_buffered;
    // Its clients are the replicas, which have limits per client.
    let many = MAX_OF_REPLICAS;
    own.server.per_client = downstream::ClientQuota {
        calls: many,
        waiting: many,
        streams: many,
        sessions: many,
        ..Default::default()
    };
    own.protocol.page_size = config.protocol.page_size;
    own.naming.mode = config::NamingMode::None;
    own.upstreams = vec![config::UpstreamConfig {
        exports: catalog::ExportRules {
            prompts: AllowDeny::everything(),
            tools: AllowDeny::everything(),
            resources: AllowDeny::everything(),
            rename: Vec::new(),
            ..upstream.exports.clone()
        },
        guard: GuardRules {
            arguments: ArgumentCheck::Off,
            max_argument: usize::MAX,
            output: ResultCheck::Off,
            hidden_text: HiddenText::Pass,
            results: Vec::new(),
            redact: Vec::new(),
        },
        pinning: pins::Mode::Off,
        replicas: config::Replicas::Each,
        ..upstream.clone()
    }];
    own
}

/// Path of an upstream on the replica that runs it.
fn path_of(upstream: &str) -> String {
    format!("/upstreams/{upstream}")
}

/// Creates the parts of a snapshot, with the state of the previous ones.
pub(super) fn snapshot_parts(
    config: &config::Config,
    upstreams: Vec<Upstream>,
    catalog: Catalog,
    (policy, inspectors): (&Policy, &Inspectors),
    audit: Audit,
) -> SnapshotParts {
    let names =
        || config.upstreams.iter().map(|upstream| (upstream.settings.name.clone(), upstream));
    let modes = names().map(|(name, upstream)| (name, upstream.pinning)).collect();
    let pins = pins::Settings {
        modes,
        file: Some(config.lock_file.clone()),
        texts: config.state.dir.as_ref().map(|dir| dir.join("approved")),
        secrets: names().map(|(name, upstream)| (name, secrets(upstream))).collect(),
        observer: pins::ApprovalObserver(Some(Arc::new(move |upstream, by, changes| {
            let kind = PolicyChange::Pins { upstream: upstream.to_owned() };
            audit.record_policy(PolicyEvent { changes, ..PolicyEvent::new(kind, by) });
        }))),
    };
    let guard = names().map(|(name, upstream)| (name, upstream.guard.clone()));
    SnapshotParts {
        policy: policy.with_settings(policy_settings(config)),
        catalog,
        inspectors: Inspectors {
            guard: inspectors.guard.with_rules(guard),
            pins: inspectors.pins.with_settings(pins),
        },
        upstreams,
        list_wait: config.protocol.list_wait,
    }
}

/// Returns the secrets of the configuration that an upstream's server knows, with parts of them.
fn secrets(upstream: &config::UpstreamConfig) -> Vec<Secret> {
    let source = &upstream.settings.source;
    let known = source.configured_secrets().into_iter().map(Secret::from).chain(source.secrets());
    upstream.file_contents.iter().cloned().chain(known).collect()
}

/// Returns a short hash of what decides about requests: replicas that differ in it answer
/// differently.
pub(super) fn digest(config: &config::Config) -> String {
    let config::Config { protocol, naming, guard, pinning, upstreams, .. } = config;
    let config::Config { auth, providers, roles, clients, limits, .. } = config;
    let content = (protocol, naming, guard, pinning, upstreams);
    let access = (auth, providers, roles, clients, limits);
    // Secrets are not part of it: `Debug` does not show them.
    hex(&sha256(format!("{content:?}{access:?}"))[..4])
}

/// Settings of the audit log; an error if there is no folder for its file.
pub(super) fn audit(config: &config::Config) -> Result<audit::Settings, String> {
    let written = &config.audit;
    let target = match (&config.state.dir, &written.path) {
        (_, path) if path.as_os_str() == "-" => audit::AuditTarget::Stdout,
        (_, path) if path.is_absolute() => audit::AuditTarget::File(path.clone()),
        (Some(dir), path) => audit::AuditTarget::File(dir.join(path)),
        (None, path) => {
            return Err(format!(
                "there is no folder for {}: neither XDG_STATE_HOME nor HOME is set",
                path.display()
            ));
        }
    };
    Ok(audit::Settings {
        target,
        arguments: written.arguments,
        chain: written.chain,
        rotate_size: written.rotate.size as u64,
        rotate_keep: written.rotate.keep,
        on_error: written.on_error,
    })
}

pub(super) fn downstream(config: &config::Config) -> downstream::Settings {
    let (server, protocol) = (&config.server, &config.protocol);
    let hosts = server.allowed_hosts.iter().map(|host| host.parse().expect(CHECKED));
    let origins = server.allowed_origins.iter().map(|origin| origin.parse().expect(CHECKED));
    downstream::Settings {
        path: server.path.clone(),
        // In the same way as the configuration check: `::ffff:127.0.0.1` is loopback, too.
        loopback: server.listen.ip().to_canonical().is_loopback(),
        allowed_hosts: hosts.collect(),
        allowed_origins: origins.collect(),
        max_body: server.max_body,
        max_head: server.max_head,
        max_headers: server.max_headers,
        max_response: server.max_reply,
        timeouts: server.timeouts,
        per_client: server.per_client,
        versions: protocol.versions.clone(),
        trusted_proxies: server.trusted_proxies.clone(),
        legacy_sse: protocol.legacy_sse,
        resumable: protocol.resumable,
        public_prefix: public_prefix(server),
        protected_resource: protected_resource(config),
        session_lifetime: downstream::SessionLifetime {
            idle: protocol.session_ttl,
            max_age: server.session_max_age,
        },
        session_records: config.state.dir.as_ref().map(|dir| dir.join("sessions")),
        sse_keepalive: protocol.sse_keepalive,
    }
}

/// Memory budget of the process.
pub(super) fn memory_budget(config: &config::Config) -> MemoryBudget {
    MemoryBudget::new(config.server.max_buffered)
}

/// Returns the prefix that a proxy adds to our paths: the path of the public URL, with or without
/// the endpoint's own path at its end.
fn public_prefix(server: &config::ServerConfig) -> String {
    let path = server.public_url.as_ref().map(Uri::path).unwrap_or_default();
    let prefix = path.strip_suffix(&server.path).unwrap_or(path);
    prefix.trim_end_matches('/').to_owned()
}

/// Protected resource metadata for clients of identity providers.
fn protected_resource(config: &config::Config) -> Option<ProtectedResource> {
    let url = config.server.public_url.as_ref().filter(|_| !config.providers.is_empty())?;
    let (scheme, authority) = (url.scheme_str()?, url.authority()?.as_str().to_ascii_lowercase());
    let each = || config.providers.iter();
    let servers: Vec<String> = each().map(|it| it.tokens.issuer.clone()).collect();
    let supported: BTreeSet<String> = each()
        .flat_map(|it| it.scopes_supported.iter().chain(&it.tokens.scopes_required))
        .cloned()
        .collect();
    let mut required = each().map(|it| &it.tokens.scopes_required);
    let first = required.next()?;
    // A provider does not know the scopes of another one, so only scopes that all require can be
    // requested.
    let scope = required.all(|other| other == first).then(|| first.join(" "));
    Some(ProtectedResource::new(
        &format!("{scheme}://{authority}"),
        &format!("{}{}", public_prefix(&config.server), config.server.path),
        &config.server.path,
        &servers,
        &Vec::from_iter(supported),
        scope.unwrap_or_default(),
    ))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use weir_access::policy::role::Role;
    use weir_access::policy::tokens;
    use weir_mcp::kind::Kind;
    use weir_mcp::name::Characters;
    use weir_mcp::pattern::AllowDeny;
    use weir_mcp::revision::{Era, Revision};

    /// Keys that components get, none of them at its default.
    const UNUSUAL: &str = r#"
[server]
path = "/x"
public_url = "https://mcp.lan/weir/x"
allowed_hosts = ["weir.lan"]
allowed_origins = ["https://app.lan"]
max_body = "1MiB"
max_reply = "2MiB"
max_connections = 11
session_max_age = "15s"
[protocol]
versions = ["2025-06-18"]
legacy_sse = true
resumable = true
session_ttl = "12s"
sse_keepalive = "13s"
page_size = 14
[naming]
separator = "_-"
characters = "any"
max_length = 57
[auth]
mode = "anonymous"
anonymous_role = "viewer"
[audit]
path = "log/a"
arguments = "hash"
chain = false
rotate = { size = "1MiB", keep = 3 }
on_error = "refuse"
[state]
dir = "state"
[roles.viewer]
prompts.allow = ["hub/p"]
tools.allow = ["hub/t"]
resources.allow = ["hub/r"]
[clients.ann]
key_sha256 = ["1111111111111111111111111111111111111111111111111111111111111111"]
role = "viewer"
expires = 2027-06-30T00:00:00Z
[auth.oidc.corp]
issuer = "https://id.lan/a/"
audience = ["a1", "a2"]
preset = "okta"
user_claim = "uid"
role_claim = "a.b"
roles = { "g" = "viewer" }
default_role = "local"
scopes_supported = ["s1"]
scopes_required = ["s2"]
algorithms = ["ES256"]
jwks_uri = "https://keys.lan/k"
blocked = ["eve"]
not_before = 1970-01-01T00:01:00Z
[upstreams.hub]
command = "hub"
args = ["a"]
env = { SET = "v" }
pass_env = ["CARGO_PKG_NAME"]
cwd = "sub"
prefix = "pre"
era = "legacy"
prompts.allow = ["p*"]
tools.deny = ["t*"]
resources.allow = ["r*"]
rename = { "tools/a" = "b" }
timeouts = { startup = "1s", list = "2s", call = "3s", call_max = "4s", reset_on_progress = false, gather = "5s", idle = "9s", connect = "10s", stop = "11s", terminate = "12s" }
retry = { backoff = "5s", max_backoff = "6s", jitter = false }
breaker = { failures = 2, cool_down = "1s", max_cool_down = "2s" }
lazy = true
on_down = "hide"
on_down_grace = "8s"
limits = { concurrency = 7, max_message = 8, max_items = 9, max_pages = 10, waiting = 11, wait = "12s", max_list = 13 }
[upstreams.web]
url = "http://h/sse"
headers = { X-Team = "t" }
transport = "sse"
"#;

    fn config() -> config::Config {
        let options = config::Options::default();
        let config = config::Config::parse(UNUSUAL, Path::new("/etc/weir.toml"), &options);
        config.unwrap_or_else(|report| panic!("{report}"))
    }

    #[test]
    fn every_key_reaches_a_component_or_the_program_itself() {
        let several = "[roles.localx]\n[upstreams.a]\ncommand = \"x\"\nlazy = true\n\
                       [upstreams.b]\nurl = \"http://h/\"\n\
                       [upstreams.c]\ncommand = \"x\"\non_down = \"hide\"\n\
                       [upstreams.d]\nurl = \"https://h/\"\n\
                       auth = { type = \"oauth\", grant = \"jwt_bearer\", \
                       assertion.file = \"x\", issuer = \"https://i/\" }\n";
        let single = "[upstreams.a]\ncommand = \"x\"\n";
        let settings = |text: String| {
            let environment = [("HOME", "/home/ann")].into_iter().collect();
            let options = config::Options { environment, ..config::Options::default() };
            let config = config::Config::parse(&text, Path::new("/weir.toml"), &options).ok()?;
            let each = config.upstreams.iter();
            let connections = each.map(|it| upstream(it, None, &config.state));
            let checks = config.upstreams.iter().map(|it| (&it.guard, it.pinning));
            let (connections, checks) = (Vec::from_iter(connections), Vec::from_iter(checks));
            let edges = (downstream(&config), audit(&config), &config.lock_file);
            let edges = (edges, memory_budget(&config));
            let mut rules = policy_settings(&config);
            let roles = std::collections::BTreeMap::from_iter(std::mem::take(&mut rules.roles));
            let rules = (rules, roles, catalog(&config));
            Some(format!("{:?}", (connections, checks, edges, rules)))
        };
        let mut elsewhere = Vec::new();
        for (path, line) in weir_config::testing::unusual_values() {
            let pair = [several, single].into_iter().find_map(|upstreams| {
                Some((settings(upstreams.into())?, settings(format!("{line}{upstreams}"))?))
            });
            let (usual, unusual) = pair.unwrap_or_else(|| panic!("{line} is refused"));
            elsewhere.extend((usual == unusual).then_some(path));
        }
        // The listeners, the log and the end of the process; the wait for lists; a variable that is
        // not set; exceptions without a proxy; whether requests are recorded.
        let expected = [
            "server.max_connections",
            "server.shutdown_delay",
            "server.shutdown_grace",
            "server.watch",
            "protocol.list_wait",
            "defaults.pass_env",
            "egress.no_proxy",
            "log.level",
            "log.format",
            "admin.enabled",
            "admin.listen",
            "admin.token",
            "audit.enabled",
        ];
        assert_eq!(elsewhere, expected);
    }

    #[test]
    fn every_key_of_an_upstream_reaches_its_settings() {
        let settings = upstream(&config().upstreams[0], None, &config().state);
        let seconds = Duration::from_secs;
        assert_eq!((settings.name.as_str(), settings.era), ("hub", Some(Era::Legacy)));
        let upstream::Timeouts {
            connect,
            startup,
            list,
            call,
            call_max,
            reset_on_progress,
            gather,
            idle,
            stop,
            terminate,
        } = settings.timeouts;
        assert_eq!((settings.lazy, idle), (true, Some(seconds(9))));
        assert_eq!([startup, list, call, call_max, gather], [1, 2, 3, 4, 5].map(seconds));
        assert_eq!([connect, stop, terminate], [10, 11, 12].map(seconds));
        assert!(!reset_on_progress && !settings.retry.jitter);
        let upstream::RetrySettings { backoff, max_backoff, .. } = settings.retry;
        assert_eq!([backoff, max_backoff], [5, 6].map(seconds));
        let expected = upstream::health::breaker::Settings {
            failures: 2,
            cool_down: seconds(1),
            max_cool_down: seconds(2),
        };
        assert_eq!(settings.breaker, expected);
        assert_eq!(settings.on_down, upstream::OnDown::Hide { after: seconds(8) });
        let upstream::UpstreamLimits {
            concurrency,
            waiting,
            wait,
            max_message,
            max_items,
            max_pages,
            max_list,
        } = settings.limits;
        assert_eq!([concurrency, max_message, max_items, max_pages], [7, 8, 9, 10]);
        assert_eq!((waiting, wait, max_list), (11, seconds(12), 13));
        let upstream::UpstreamSource::Process(command) = settings.source else {
            panic!("a process")
        };
        assert_eq!((command.program.as_str(), command.args), ("hub", vec!["a".into()]));
        assert_eq!(command.cwd.as_deref(), Some(Path::new("/etc/sub")));
        let variable = |name: &str| {
            let mut variables = command.inherited.iter().chain(&command.env);
            let found = variables.rfind(|(found, _)| found == name);
            found.map(|(_, value)| value.expose())
        };
        assert_eq!(variable("SET"), Some("v"));
        // Cargo sets both where it runs the tests; only the first is handed on.
        assert_eq!(variable("CARGO_PKG_NAME"), std::env::var("CARGO_PKG_NAME").ok().as_deref());
        assert_eq!((variable("PATH").is_some(), variable("CARGO_PKG_VERSION")), (true, None));
    }

    #[test]
    fn every_key_of_an_http_upstream_reaches_its_settings() {
        let settings = upstream(&config().upstreams[1], None, &config().state);
        let upstream::UpstreamSource::Http { url, headers, transport, .. } = settings.source else {
            panic!("a url")
        };
        assert_eq!((url.to_string().as_str(), headers.len()), ("http://h/sse", 1));
        assert_eq!(headers["x-team"], "t");
        assert_eq!(transport, Some(upstream::HttpTransport::Sse));
    }

    #[test]
    fn a_secret_file_in_an_argument_or_a_url_is_a_secret_that_the_server_knows() {
        let mut config = config();
        for (at, secret) in [(0, "of-an-argument"), (1, "of-a-url")] {
            assert!(!secrets(&config.upstreams[at]).contains(&secret.into()));
            config.upstreams[at].file_contents = vec![secret.into()];
            assert!(secrets(&config.upstreams[at]).contains(&secret.into()));
        }
    }

    #[test]
    fn every_key_of_the_catalog_reaches_it() {
        let settings = catalog(&config());
        assert_eq!(settings.naming, Naming::new(Some("_-"), Characters::Any, 57));
        assert_eq!(settings.page_items, 14);
        let exports = &settings.exports[0];
        assert_eq!((exports.name.as_str(), exports.prefix.as_str()), ("hub", "pre"));
        assert!(exports.prompts.allow("p1") && !exports.prompts.allow("x"));
        assert!(!exports.tools.allow("t1") && exports.tools.allow("x"));
        assert!(exports.resources.allow("r1") && !exports.resources.allow("x"));
        assert_eq!(exports.rename, [(Kind::Tool, "a".to_owned(), "b".to_owned())]);
    }

    #[test]
    fn every_key_of_the_policy_reaches_it() {
        let settings = policy_settings(&config());
        assert_eq!(settings.anonymous_role.as_deref(), Some("viewer"));
        let [prompts, tools, resources] =
            ["hub/p", "hub/t", "hub/r"].map(|it| AllowDeny::new(&[it], &[]));
        assert_eq!(settings.roles["viewer"], Role { prompts, tools, resources });
        let client = &settings.clients[0];
        assert_eq!((client.name.as_str(), client.role.as_str()), ("ann", "viewer"));
        assert!(client.key_sha256 == [[0x11; 32]] && client.expires.is_some());
        let expected = tokens::Settings {
            name: "corp".into(),
            issuer: "https://id.lan/a/".into(),
            audience: vec!["a1".into(), "a2".into()],
            preset: tokens::Preset::Okta,
            user_claim: "uid".into(),
            role_claim: "a.b".into(),
            roles: [("g".to_owned(), "viewer".to_owned())].into(),
            default_role: Some("local".into()),
            scopes_required: vec!["s2".into()],
            algorithms: vec![tokens::Algorithm::Es256],
            jwks_uri: Some(Uri::from_static("https://keys.lan/k")),
        };
        assert_eq!(settings.providers, [expected]);
        let mut refusals = policy::Refusals::default();
        refusals.block("corp", "eve");
        refusals.refuse_before("corp", std::time::UNIX_EPOCH + Duration::from_secs(60));
        assert_eq!(settings.refusals, refusals);
    }

    #[test]
    fn what_clients_are_told_of_the_providers_is_what_they_can_reach() {
        let shown = format!("{:?}", protected_resource(&config()).expect("there is a provider"));
        for part in [
            r#"\"resource\":\"https://mcp.lan/weir/x\",\"authorization_servers\":[\"https://id.lan/a/\"]"#,
            r#"\"scopes_supported\":[\"s1\",\"s2\"]"#,
            r#"url: "https://mcp.lan/.well-known/oauth-protected-resource/weir/x""#,
            r#"scope: "s2""#,
        ] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
        assert!(protected_resource(&config::Config::default()).is_none());
    }

    #[test]
    fn every_key_of_the_server_reaches_its_settings() {
        let settings = downstream(&config());
        assert_eq!((settings.path.as_str(), settings.loopback), ("/x", true));
        let hosts = ["weir.lan", "mcp.lan"].map(|host| host.parse().expect("a host"));
        assert_eq!(settings.allowed_hosts, hosts);
        assert_eq!(settings.allowed_origins, ["https://app.lan".parse().expect("an origin")]);
        assert_eq!((settings.max_body, settings.max_response), (1 << 20, 2 << 20));
        assert!(settings.versions.has(Revision::V2025_06_18) && !settings.versions.has_modern());
        assert_eq!((settings.legacy_sse, settings.public_prefix.as_str()), (true, "/weir"));
        assert!(settings.resumable);
        let lifetime = settings.session_lifetime;
        let times = [lifetime.idle, settings.sse_keepalive, lifetime.max_age];
        assert_eq!(times, [12, 13, 15].map(Duration::from_secs));
        assert_eq!(settings.session_records, Some("/etc/state/sessions".into()));
    }

    #[test]
    fn every_key_of_the_audit_log_reaches_it() {
        let settings = audit(&config()).expect("a folder");
        let expected = audit::Settings {
            target: audit::AuditTarget::File("/etc/state/log/a".into()),
            arguments: audit::Arguments::Hash,
            chain: false,
            rotate_size: 1 << 20,
            rotate_keep: 3,
            on_error: audit::OnError::Refuse,
        };
        assert_eq!(settings, expected);
        for (path, state, expected) in [
            ("-", None, Some(audit::AuditTarget::Stdout)),
            ("/a", None, Some(audit::AuditTarget::File("/a".into()))),
            ("a", Some("/s"), Some(audit::AuditTarget::File("/s/a".into()))),
            ("a", None, None),
        ] {
            let mut config = config();
            config.audit.path = path.into();
            config.state.dir = state.map(Into::into);
            assert_eq!(audit(&config).ok().map(|it| it.target), expected, "{path}");
        }
    }

    #[test]
    fn the_public_url_says_what_stands_before_the_paths() {
        for (url, expected) in [
            ("https://a", ""),
            ("https://a/", ""),
            ("https://a/mcp", ""),
            ("https://a/weir", "/weir"),
            ("https://a/weir/", "/weir"),
            ("https://a/weir/mcp", "/weir"),
            ("https://a/b/weir/mcp", "/b/weir"),
            ("https://a/xmcp", "/xmcp"),
        ] {
            let public_url = Some(Uri::from_static(url));
            let server = config::ServerConfig { public_url, ..config::ServerConfig::default() };
            assert_eq!(public_prefix(&server), expected, "{url}");
        }
        assert_eq!(public_prefix(&config::ServerConfig::default()), "");
    }

    #[test]
    fn the_page_names_the_variables_that_every_child_gets() {
        let page = config::page();
        let (_, rest) = page.split_once("a program gets of the user").expect("the list");
        let (list, _) = rest.split_once("no others").expect("its end");
        let named = list.split('`').skip(1).step_by(2).collect::<BTreeSet<_>>();
        assert_eq!(named, environment::inherited_names().collect::<BTreeSet<_>>());
    }
}
