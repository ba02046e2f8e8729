//! Environment of child processes: the variables of Weir that they inherit, and those that they do
//! not.
//!
//! Invariant: a child inherits what programs need to find the user, their files, the network and
//! their tools, and no variable whose purpose is to hold a secret. (A proxy's URL may have a
//! password in it, which the child needs to use the proxy.) All others have to be named.
//!
//! Decision: docs/decisions/0049-environment-of-child-processes.md

use std::ffi::OsString;

use crate::process::child_command::ChildCommand;
use crate::process::search_path;
use weir_base::secrets::secret::Secret;

/// Gives a command the variables that it inherits of `own`, and in front of its configured ones
/// those that `passed` names; an entry of `passed` with a `*` at its end names a family. Variables
/// that are no text are left out.
pub fn inherit(
    command: &mut ChildCommand,
    passed: &[String],
    own: impl IntoIterator<Item = (OsString, OsString)>,
) {
    let (mut inherited, mut named, mut withheld) = (Vec::new(), Vec::new(), Vec::new());
    for (name, value) in own {
        let (Ok(name), Ok(value)) = (name.into_string(), value.into_string()) else { continue };
        let value = match &*name {
            "PATH" => search_path::absolute_entries(&value),
            _ => value,
        };
        // An empty search path means the working directory.
        if name == "PATH" && value.is_empty() {
            continue;
        }
        if passed.iter().any(|entry| matches(entry, &name)) {
            named.push((name, Secret::from(value)));
        } else if is_inherited(&name) {
            inherited.push((name, Secret::from(value)));
        } else {
            withheld.push(name);
        }
    }
    // The order of an environment means nothing, and differs from process to process.
    inherited.sort_by(|(one, _), (other, _)| one.cmp(other));
    named.sort_by(|(one, _), (other, _)| one.cmp(other));
    withheld.sort();
    named.append(&mut command.env);
    (command.inherited, command.env, command.withheld) = (inherited, named, withheld);
}

/// Returns the variables that each child process inherits: names, and beginnings of the names of
/// families with a `*`.
pub fn inherited_names() -> impl Iterator<Item = &'static str> {
    [&BASE[..], &NETWORK, &TOOLS].into_iter().flatten().copied()
}

/// Returns whether each child process inherits a variable of this name.
fn is_inherited(name: &str) -> bool {
    let is_like_a_secret = SECRET_PARTS.iter().any(|part| name.contains(part));
    inherited_names().any(|entry| entry == name || matches(entry, name) && !is_like_a_secret)
}

/// Returns whether an entry of a list names a variable.
fn matches(entry: &str, name: &str) -> bool {
    match entry.strip_suffix('*') {
        Some(family) => name.starts_with(family),
        None => entry == name,
    }
}

/// The user, their files, their language.
const BASE: [&str; 12] = [
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "LANG", "LANGUAGE", "LC_*", "TZ",
    "XDG_*",
];

/// The way to the network: without these a server fails where a company inspects TLS, or lets
/// programs out through a proxy only.
const NETWORK: [&str; 17] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "NODE_USE_SYSTEM_CA",
    "NODE_USE_ENV_PROXY",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "UV_SYSTEM_CERTS",
    "UV_NATIVE_TLS",
];

/// Folders and sockets of the tools that start servers. Their other variables are not here:
/// `npm_config_*`, `PIP_*` and `UV_*` can hold the password of a package index, `AWS_*` keys, and
/// `SSH_AUTH_SOCK` signs with a user's keys.
const TOOLS: [&str; 13] = [
    "NVM_DIR",
    "FNM_DIR",
    "VOLTA_HOME",
    "ASDF_*",
    "MISE_*",
    "PYENV_ROOT",
    "CARGO_HOME",
    "HOMEBREW_PREFIX",
    "UV_CACHE_DIR",
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
    "DOCKER_CONFIG",
    "KUBECONFIG",
];

/// Parts of the names of variables that are not passed as members of a family, such as
/// `MISE_GITHUB_TOKEN`.
const SECRET_PARTS: [&str; 5] = ["TOKEN", "KEY", "SECRET", "PASSW", "CREDENTIAL"];

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    /// Names of a child's variables, and of those that it does not get.
    fn given(names: &[&str], passed: &[&str]) -> (Vec<String>, Vec<String>, Vec<String>) {
        let own = names.iter().map(|name| ((*name).into(), "/x".into()));
        let passed = passed.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let env = vec![("GIVEN".to_owned(), "x".into())];
        let mut command = ChildCommand { env, ..ChildCommand::default() };
        inherit(&mut command, &passed, own);
        let names = |of: Vec<(String, Secret)>| of.into_iter().map(|(name, _)| name).collect();
        (names(command.inherited), names(command.env), command.withheld)
    }

    #[test]
    fn a_child_inherits_base_network_and_tools() {
        let all: Vec<_> = inherited_names().map(|name| name.replace('*', "X")).collect();
        let names: Vec<_> = all.iter().map(String::as_str).collect();
        let (inherited, env, withheld) = given(&names, &[]);
        let mut expected = all.clone();
        expected.sort();
        assert_eq!((inherited, env), (expected, vec!["GIVEN".to_owned()]));
        assert_eq!(withheld, [""; 0]);
    }

    #[test]
    fn what_can_hold_a_token_is_withheld() {
        let names = [
            "AWS_SECRET_ACCESS_KEY",
            "GITHUB_TOKEN",
            "LD_PRELOAD",
            "MISE_GITHUB_TOKEN",
            "NODE_OPTIONS",
            "NOTION_TOKEN",
            "PIP_INDEX_URL",
            "SSH_AUTH_SOCK",
            "UV_INDEX_URL",
            "WEIR_ADMIN_TOKEN",
            "XDG_API_KEY",
            "npm_config_registry",
        ];
        let (inherited, _, withheld) = given(&names, &[]);
        assert_eq!((inherited, withheld.as_slice()), (vec![], &names.map(str::to_owned)[..]));
    }

    #[test]
    fn variables_are_passed_by_their_names_and_families() {
        let names = ["UV_INDEX", "UV_CACHE_DIR", "UVX", "NOTION_TOKEN", "GITHUB_TOKEN", "HOME"];
        let (inherited, env, withheld) = given(&names, &["UV_*", "NOTION_TOKEN", "ABSENT"]);
        assert_eq!(inherited, ["HOME"]);
        assert_eq!(env, ["NOTION_TOKEN", "UV_CACHE_DIR", "UV_INDEX", "GIVEN"]);
        assert_eq!(withheld, ["GITHUB_TOKEN", "UVX"]);
    }

    #[test]
    fn a_search_path_keeps_its_absolute_entries_and_what_is_no_text_is_left_out() {
        let broken = OsString::from_vec(vec![b'/', 0xff]);
        let own =
            [("PATH", OsString::from(".:/a::b")), ("HOME", broken.clone()), ("OTHER", broken)];
        let mut command = ChildCommand::default();
        inherit(&mut command, &[], own.map(|(name, value)| (name.into(), value)));
        assert_eq!(command.search_path(), Some("/a"));
        assert_eq!((command.inherited.len(), command.withheld), (1, vec![]));
        let mut command = ChildCommand::default();
        let path = [("PATH".into(), ".:/a::b".into())];
        inherit(&mut command, &["PATH".to_owned()], path);
        assert_eq!((command.search_path(), command.inherits_search_path()), (Some("/a"), false));
        let mut command = ChildCommand::default();
        inherit(&mut command, &[], [("PATH".into(), ".:".into())]);
        assert_eq!(command.search_path(), None);
    }
}
