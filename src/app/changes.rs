//! Differences between two configurations, as text, and the part of a new configuration that can be
//! applied without a restart.
//!
//! Invariant: no value of a key is included, because some are secrets.

use std::collections::{HashMap, HashSet};

use weir_config::{Config, UpstreamConfig};

/// Description of the differences.
#[derive(Default)]
pub(super) struct Changes {
    lines: Vec<String>,
    kept_upstreams: usize,
}

impl Changes {
    /// Compares everything except the upstreams' own settings.
    pub(super) fn between(before: &Config, next: &Config) -> Self {
        let mut changes = Self::default();
        let names = |config: &Config| -> Vec<String> {
            config.upstreams.iter().map(|upstream| upstream.name().to_owned()).collect()
        };
        let (were, are) = (names(before), names(next));
        for name in were.iter().filter(|name| !are.contains(name)) {
            changes.lines.push(format!("upstream {name} removed"));
        }
        for upstream in &next.upstreams {
            let was = before.upstreams.iter().find(|was| was.name() == upstream.name());
            let is_guarded = |was: &UpstreamConfig| {
                (&was.guard, was.pinning) == (&upstream.guard, upstream.pinning)
            };
            if was.is_some_and(|was| was.exports != upstream.exports) {
                changes.lines.push(format!(
                    "upstream {}: prefix, rules or renames changed",
                    upstream.name()
                ));
            }
            if was.is_some_and(|was| !is_guarded(was)) {
                changes
                    .lines
                    .push(format!("upstream {}: guard or pinning changed", upstream.name()));
            }
        }
        let sorted = |mut names: Vec<String>| {
            names.sort();
            names
        };
        if were != are && sorted(were.clone()) == sorted(are.clone()) {
            changes.lines.push("order of upstreams changed".to_owned());
        }
        changes.kept_upstreams = are.len();

        let roles = |config: &Config| Vec::from_iter(config.roles.clone());
        changes.compare_named("role", &roles(before), &roles(next));
        let clients = |config: &Config| -> Vec<_> {
            config.clients.iter().map(|it| (it.name.clone(), it.clone())).collect()
        };
        changes.compare_named("client", &clients(before), &clients(next));
        let providers = |config: &Config| -> Vec<_> {
            config.providers.iter().map(|it| (it.tokens.name.clone(), it.clone())).collect()
        };
        changes.compare_named("identity provider", &providers(before), &providers(next));
        for (what, is_same) in [
            ("auth", before.auth == next.auth),
            ("limits", before.limits == next.limits),
            ("log", before.log.level == next.log.level),
            (
                "guard",
                (&before.guard, before.pinning, &before.lock_file)
                    == (&next.guard, next.pinning, &next.lock_file),
            ),
            ("naming", before.naming == next.naming),
            ("protocol", before.protocol == next.protocol),
            ("server", before.server == next.server),
        ] {
            if !is_same {
                changes.lines.push(format!("{what} changed"));
            }
        }
        changes
    }

    /// Records that an upstream was started: a new one, or a replacement.
    pub(super) fn opened(&mut self, name: &str, is_again: bool) {
        let what = if is_again { "restarted" } else { "added" };
        self.lines.push(format!("upstream {name} {what}"));
        self.kept_upstreams -= 1;
    }

    /// Returns all lines; none if nothing differs.
    pub(super) fn lines(mut self) -> Vec<String> {
        if !self.lines.is_empty() {
            self.lines.push(format!("upstreams kept: {}", self.kept_upstreams));
        }
        self.lines
    }

    fn compare_named<T: PartialEq>(
        &mut self,
        what: &str,
        before: &[(String, T)],
        next: &[(String, T)],
    ) {
        let by_name: HashMap<&str, &T> = before.iter().map(|(name, was)| (&**name, was)).collect();
        for (name, it) in next {
            match by_name.get(&**name) {
                None => self.lines.push(format!("{what} {name} added")),
                Some(was) if *was != it => self.lines.push(format!("{what} {name} changed")),
                Some(_) => {}
            }
        }
        let names: HashSet<&str> = next.iter().map(|(name, _)| &**name).collect();
        for (name, _) in before.iter().filter(|(name, _)| !names.contains(&**name)) {
            self.lines.push(format!("{what} {name} removed"));
        }
    }
}

/// Returns the part of a configuration that can be applied without a restart, and the keys that
/// need one. An error if the applicable part would be unsafe without the rest. With a single client
/// there is no listener.
pub(super) fn applicable(
    before: &Config,
    mut next: Config,
    single_client: bool,
) -> Result<(Config, Vec<&'static str>), String> {
    let (was, is) = (&before.server, &next.server);
    let listens_publicly = !was.listen.ip().to_canonical().is_loopback();
    let is_meant_for_loopback = is.listen.ip().to_canonical().is_loopback();
    if !single_client
        && listens_publicly
        && is_meant_for_loopback
        && next.auth.anonymous
        && !before.auth.anonymous
    {
        return Err(format!(
            "anonymous access would be open to everyone: it is safe on the address of the file, {}, \
             but not on the current address, {}; restart Weir to change both",
            is.listen, was.listen
        ));
    }
    let mut kept = Vec::new();
    let (was, is) = (&before.server, &mut next.server);
    keep(&mut kept, "server.listen", &was.listen, &mut is.listen);
    keep(&mut kept, "server.tls", &was.tls, &mut is.tls);
    keep(&mut kept, "server.max_connections", &was.max_connections, &mut is.max_connections);
    keep(&mut kept, "server.max_buffered", &was.max_buffered, &mut is.max_buffered);
    keep(&mut kept, "log.format", &before.log.format, &mut next.log.format);
    keep(&mut kept, "state", &before.state, &mut next.state);
    keep(&mut kept, "admin", &before.admin, &mut next.admin);
    keep(&mut kept, "audit", &before.audit, &mut next.audit);
    keep(&mut kept, "fleet", &before.fleet, &mut next.fleet);
    if single_client {
        kept.retain(|key| !KEYS_OF_LISTENERS.contains(key));
        let matters = |key: &&str| ["audit", "state"].contains(key);
        if before.is_stand_in() && !next.is_stand_in() && kept.iter().any(matters) {
            // Those of a file that could not be read are not what it says.
            let why =
                "the mistake was in [audit] or [state]: restart the client, which starts Weir";
            return Err(why.to_owned());
        }
    } else if before.records_requests() != next.records_requests() && !kept.contains(&"audit") {
        // By default, the audit log depends on whether clients need credentials.
        kept.push("audit");
    }
    Ok((next, kept))
}

/// Keeps the value of a key that needs a restart; `kept` are the keys that have changed.
fn keep<T: Clone + PartialEq>(
    kept: &mut Vec<&'static str>,
    key: &'static str,
    was: &T,
    is: &mut T,
) {
    if was != is {
        kept.push(key);
        is.clone_from(was);
    }
}

/// Keys that have no effect with a single client.
const KEYS_OF_LISTENERS: [&str; 4] =
    ["server.listen", "server.tls", "server.max_connections", "admin"];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use weir_config::Options;

    fn config(text: &str) -> Config {
        let text = format!("{text}[upstreams.house]\nprompts_dir = \"prompts\"\n");
        Config::parse(&text, Path::new("weir.toml"), &Options::default()).expect("it is good")
    }

    #[test]
    fn a_change_of_the_fleet_waits_for_a_restart() {
        let of = |timeout: &str| {
            let store = format!("{{ url = \"redis://h\", timeout = \"{timeout}\" }}");
            let keys = "A".repeat(43);
            config(&format!(
                "[fleet]\nstore = {store}\nkeys = \"{keys}\"\nlisten = \"10.0.0.1:2\"\n"
            ))
        };
        let (before, next) = (of("50ms"), of("1s"));
        let (next, after_restart) = applicable(&before, next, false).expect("it is safe");
        assert_eq!((next.fleet, after_restart), (before.fleet, vec!["fleet"]));
    }

    #[test]
    fn anonymous_access_that_is_meant_for_loopback_is_refused_while_weir_listens_elsewhere() {
        let keyed = format!(
            "public_url = \"https://mcp.example.com\"\n[roles.guest]\n\
             [clients.ann]\nrole = \"guest\"\nkey_sha256 = [\"{}\"]\n",
            "1".repeat(64)
        );
        let before = config(&format!("[server]\nlisten = \"0.0.0.0:8642\"\n{keyed}"));
        let open =
            || config("[server]\nlisten = \"127.0.0.1:8642\"\n[auth]\nmode = \"anonymous\"\n");
        let refusal = applicable(&before, open(), false).expect_err("it is unsafe");
        assert!(refusal.contains("open to everyone"), "{refusal}");
        assert!(
            refusal.contains("127.0.0.1:8642") && refusal.contains("0.0.0.0:8642"),
            "{refusal}"
        );

        // With the keys the address only waits; towards a client on stdio there is no listener.
        let safe = config(&format!("[server]\nlisten = \"127.0.0.1:8642\"\n{keyed}"));
        let (next, after_restart) = applicable(&before, safe, false).expect("it is safe");
        assert_eq!(next.server.listen, before.server.listen);
        assert_eq!(after_restart, ["server.listen"]);
        assert!(applicable(&before, open(), true).is_ok());
    }
}
