//! From the configuration to each room's own settings.
//!
//! The configuration is checked already: what is parsed here again cannot fail.

use crate::downstream::era::Versions;
use crate::mcp::kind::Kind;
use crate::mcp::name::{Naming, UpstreamName};
use crate::mcp::pattern::Rules;
use crate::mcp::revision::{Era, Revision};
use crate::policy::keys::Key;
use crate::policy::role::Role;
use crate::upstream::dial::Command;
use crate::{catalog, config, downstream, policy, upstream};

/// What every child process inherits; everything else must be named.
const BASE_ENVIRONMENT: [&str; 7] = ["PATH", "HOME", "LANG", "TMPDIR", "USER", "SHELL", "TERM"];

/// Why parsing again cannot fail.
const CHECKED: &str = "the configuration was checked";

/// The most bytes on one page of a list.
const PAGE_BYTES: usize = 1 << 20;

pub(super) fn policy(config: &config::Config) -> policy::Settings {
    let roles = config.roles.iter().map(|(name, role)| {
        let [prompts, tools, resources] = [&role.prompts, &role.tools, &role.resources].map(rules);
        (name.clone(), Role { prompts, tools, resources })
    });
    let key = |client: &config::Client| Key {
        client: client.name.clone(),
        role: client.role.clone(),
        sha256: client.key_sha256.clone(),
        expires: client.expires,
    };
    policy::Settings {
        anonymous_role: config.auth.anonymous.then(|| config.auth.anonymous_role.clone()),
        roles: roles.collect(),
        keys: config.clients.iter().map(key).collect(),
    }
}

pub(super) fn catalog(config: &config::Config) -> catalog::Settings {
    let naming = match config.naming.mode {
        config::NamingMode::Always => {
            Naming::prefixed(&config.naming.separator, config.naming.max_length)
        }
        config::NamingMode::None => Naming::plain(),
    };
    let outlet = |upstream: &config::Upstream| catalog::Outlet {
        name: name(&upstream.name),
        prefix: name(&upstream.prefix),
        prompts: rules(&upstream.prompts),
        tools: rules(&upstream.tools),
        resources: rules(&upstream.resources),
        rename: upstream.rename.iter().map(rename).collect(),
    };
    catalog::Settings {
        naming,
        outlets: config.upstreams.iter().map(outlet).collect(),
        page_items: config.protocol.page_size,
        page_bytes: PAGE_BYTES,
    }
}

pub(super) fn upstream(upstream: &config::Upstream) -> upstream::Settings {
    let (timeouts, retry, limits) = (&upstream.timeouts, &upstream.retry, &upstream.limits);
    upstream::Settings {
        name: name(&upstream.name),
        source: source(&upstream.source),
        era: match upstream.era {
            config::EraChoice::Auto => None,
            config::EraChoice::Modern => Some(Era::Modern),
            config::EraChoice::Legacy => Some(Era::Legacy),
        },
        timeouts: upstream::Timeouts {
            startup: timeouts.startup,
            list: timeouts.list,
            call: timeouts.call,
            call_max: timeouts.call_max,
            reset_on_progress: timeouts.reset_on_progress,
        },
        retry: upstream::Retry {
            backoff: retry.backoff,
            max_backoff: retry.max_backoff,
            jitter: retry.jitter,
        },
        limits: upstream::Limits {
            concurrency: limits.concurrency,
            max_message: limits.max_message,
            max_items: limits.max_items,
            max_pages: limits.max_pages,
        },
    }
}

pub(super) fn downstream(config: &config::Config) -> downstream::Settings {
    let (server, protocol) = (&config.server, &config.protocol);
    let versions = protocol.versions.iter().filter_map(|text| text.parse::<Revision>().ok());
    let hosts = server.allowed_hosts.iter().map(|host| host.parse().expect(CHECKED));
    let origins = server.allowed_origins.iter().map(|origin| origin.parse().expect(CHECKED));
    downstream::Settings {
        path: server.path.clone(),
        // As the configuration judges it: `::ffff:127.0.0.1` is this machine, too.
        loopback: server.listen.ip().to_canonical().is_loopback(),
        allowed_hosts: hosts.collect(),
        allowed_origins: origins.collect(),
        max_body: server.max_body,
        max_connections: server.max_connections,
        versions: Versions::new(versions).expect(CHECKED),
        session_ttl: protocol.session_ttl,
        sse_keepalive: protocol.sse_keepalive,
        ..downstream::Settings::default()
    }
}

fn source(source: &config::Source) -> upstream::Source {
    match source {
        config::Source::Library { dir } => upstream::Source::Library { dir: dir.clone() },
        config::Source::Http { url, headers } => {
            upstream::Source::Http { url: url.clone(), headers: headers.iter().cloned().collect() }
        }
        config::Source::Process { command, args, env, pass_env, cwd } => {
            let inherited = BASE_ENVIRONMENT.into_iter().chain(pass_env.iter().map(String::as_str));
            let inherited =
                inherited.filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)));
            let set = env.iter().map(|(name, value)| (name.clone(), value.expose().to_owned()));
            upstream::Source::Process(Command {
                program: command.clone(),
                args: args.clone(),
                // What is set comes last and wins.
                env: inherited.chain(set).collect(),
                cwd: cwd.clone(),
            })
        }
    }
}

fn rename((kind, own, new): &(config::RenameKind, String, String)) -> (Kind, String, String) {
    let kind = match kind {
        config::RenameKind::Prompt => Kind::Prompt,
        config::RenameKind::Tool => Kind::Tool,
    };
    (kind, own.clone(), new.clone())
}

fn rules(patterns: &config::Patterns) -> Rules {
    Rules::new(&patterns.allow, &patterns.deny)
}

fn name(text: &str) -> UpstreamName {
    text.parse().expect(CHECKED)
}
