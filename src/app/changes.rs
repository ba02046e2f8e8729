//! What is different between two configurations, in words, and what of it a running house can take up.
//!
//! Knows nothing of: how it is taken up. No value of a setting is told: some are secrets.

use std::collections::{HashMap, HashSet};

use crate::config::{Config, Server, Upstream};

/// What is different.
#[derive(Default)]
pub(super) struct Changes {
    told: Vec<String>,
    kept: usize,
}

impl Changes {
    /// Compares all but the upstreams' own settings.
    pub(super) fn between(before: &Config, next: &Config) -> Self {
        let mut changes = Self::default();
        let names = |config: &Config| -> Vec<String> {
            config.upstreams.iter().map(|upstream| upstream.name.clone()).collect()
        };
        let (were, are) = (names(before), names(next));
        for name in were.iter().filter(|name| !are.contains(name)) {
            changes.told.push(format!("upstream {name} removed"));
        }
        for upstream in &next.upstreams {
            let was = before.upstreams.iter().find(|was| was.name == upstream.name);
            let is_shown = |was: &Upstream| {
                (&was.prefix, &was.prompts, &was.tools, &was.resources, &was.rename)
                    == (
                        &upstream.prefix,
                        &upstream.prompts,
                        &upstream.tools,
                        &upstream.resources,
                        &upstream.rename,
                    )
            };
            let is_guarded =
                |was: &Upstream| (&was.guard, was.pinning) == (&upstream.guard, upstream.pinning);
            if was.is_some_and(|was| !is_shown(was)) {
                changes.told.push(format!("upstream {} shown in another way", upstream.name));
            }
            if was.is_some_and(|was| !is_guarded(was)) {
                changes.told.push(format!("upstream {} guarded in another way", upstream.name));
            }
        }
        let sorted = |mut names: Vec<String>| {
            names.sort();
            names
        };
        if were != are && sorted(were.clone()) == sorted(are.clone()) {
            changes.told.push("upstreams in another order".to_owned());
        }
        changes.kept = are.len();

        let roles = |config: &Config| Vec::from_iter(config.roles.clone());
        changes.named("role", &roles(before), &roles(next));
        let clients = |config: &Config| -> Vec<_> {
            config.clients.iter().map(|it| (it.name.clone(), it.clone())).collect()
        };
        changes.named("client", &clients(before), &clients(next));
        let providers = |config: &Config| -> Vec<_> {
            config.providers.iter().map(|it| (it.tokens.name.clone(), it.clone())).collect()
        };
        changes.named("identity provider", &providers(before), &providers(next));
        for (what, is_same) in [
            ("auth", before.auth == next.auth),
            ("limits", before.limits == next.limits),
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
                changes.told.push(format!("{what} changed"));
            }
        }
        changes
    }

    /// An upstream was opened: one that is new, or in the place of another of its name.
    pub(super) fn opened(&mut self, name: &str, is_again: bool) {
        let what = if is_again { "restarted" } else { "added" };
        self.told.push(format!("upstream {name} {what}"));
        self.kept -= 1;
    }

    /// All of it; nothing if there is nothing different.
    pub(super) fn told(mut self) -> Vec<String> {
        if !self.told.is_empty() {
            self.told.push(format!("upstreams kept: {}", self.kept));
        }
        self.told
    }

    fn named<T: PartialEq>(&mut self, what: &str, before: &[(String, T)], next: &[(String, T)]) {
        let by_name: HashMap<&str, &T> = before.iter().map(|(name, was)| (&**name, was)).collect();
        for (name, it) in next {
            match by_name.get(&**name) {
                None => self.told.push(format!("{what} {name} added")),
                Some(was) if *was != it => self.told.push(format!("{what} {name} changed")),
                Some(_) => {}
            }
        }
        let names: HashSet<&str> = next.iter().map(|(name, _)| &**name).collect();
        for (name, _) in before.iter().filter(|(name, _)| !names.contains(&**name)) {
            self.told.push(format!("{what} {name} removed"));
        }
    }
}

/// What can be taken up of a configuration while the house is open, and the keys that have to wait for a restart. An
/// error if what can be taken up would be unsafe without the rest. Towards a `sole` client there is no listener.
pub(super) fn applicable(
    before: &Config,
    next: Config,
    sole: bool,
) -> Result<(Config, Vec<&'static str>), String> {
    let (was, is) = (&before.server, &next.server);
    let stays_open = !was.listen.ip().to_canonical().is_loopback();
    let was_meant_alone = is.listen.ip().to_canonical().is_loopback();
    if !sole && stays_open && was_meant_alone && next.auth.anonymous && !before.auth.anonymous {
        return Err(format!(
            "everybody would be let in, which is safe on the address of the file, {}, and not on the one that is in \
             use, {}: restart Weir to change both",
            is.listen, was.listen
        ));
    }
    let mut after_restart = Vec::new();
    let mut wait = |key, is_same: bool| {
        if !is_same {
            after_restart.push(key);
        }
    };
    if !sole {
        wait("server.listen", was.listen == is.listen);
        wait("server.tls", was.tls == is.tls);
        wait("server.max_connections", was.max_connections == is.max_connections);
    }
    wait("server.max_buffered", was.max_buffered == is.max_buffered);
    wait("log", before.log == next.log);
    wait("state", before.state == next.state);
    wait("admin", sole || before.admin == next.admin);
    let server = Server {
        listen: was.listen,
        tls: was.tls.clone(),
        max_connections: was.max_connections,
        max_buffered: was.max_buffered,
        ..next.server
    };
    let (log, state) = (before.log.clone(), before.state.clone());
    let admin = before.admin.clone();
    let (audit, written) = (before.audit.clone(), next.audit.clone());
    let next = Config { server, log, state, audit, admin, ..next };
    // Who may come in decides whether there is a log, where it is not said.
    wait("audit", before.audit == written && (sole || before.records() == next.records()));
    Ok((next, after_restart))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Options;

    fn config(text: &str) -> Config {
        let text = format!("{text}[upstreams.house]\nprompts_dir = \"prompts\"\n");
        Config::parse(&text, Path::new("weir.toml"), &Options::default()).expect("it is good")
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
        assert!(refusal.contains("everybody would be let in"), "{refusal}");
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
