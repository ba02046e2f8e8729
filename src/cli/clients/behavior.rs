//! Behavior of clients toward the servers that they start: environment and limits.

use std::ffi::OsString;
use std::time::Duration;

/// Environment in which a client starts its servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientStart {
    /// It is a program of the desktop, whose search path and variables may not be those of a
    /// terminal.
    pub(crate) is_desktop: bool,
    /// Variables of its own that its servers get.
    pub(crate) passes: PassedVariables,
}

/// Variables that a client passes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassedVariables {
    /// All of them.
    All,
    /// Those of these names.
    Named(&'static [&'static str]),
    /// Those whose names do not contain the parts that names of secrets have.
    WithoutSecrets,
}

/// Limits of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientLimits {
    /// Time within which a server must have listed its tools.
    pub(crate) startup: Option<Duration>,
    /// Most tools of all servers together.
    pub(crate) tools: Option<usize>,
    /// Text in front of a tool's name, with `{}` for the name of the entry.
    pub(crate) prefix: &'static str,
    /// Most characters of a tool's name with that text.
    pub(crate) name: usize,
}

impl ClientStart {
    /// Started in a terminal, and passes on what it has.
    pub(crate) const TERMINAL: Self = Self { is_desktop: false, passes: PassedVariables::All };

    /// Started from the desktop, and passes on what it has.
    pub(crate) const DESKTOP: Self = Self { is_desktop: true, passes: PassedVariables::All };

    /// Returns the environment that a server gets from a client that has the variables `own`.
    pub(crate) fn environment(
        self,
        own: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Vec<(OsString, OsString)> {
        let passed = own.into_iter().filter(|(name, _)| match self.passes {
            PassedVariables::All => true,
            PassedVariables::Named(names) => names.iter().any(|it| *name == **it),
            PassedVariables::WithoutSecrets => {
                let name = name.to_string_lossy().to_ascii_uppercase();
                !SECRET_PARTS.iter().any(|part| name.contains(part))
            }
        });
        let mut environment: Vec<_> = passed.collect();
        if self.is_desktop {
            environment.retain(|(name, _)| name != "PATH");
            environment.push(("PATH".into(), DESKTOP_PATH.into()));
        }
        environment
    }
}

impl ClientLimits {
    /// Limits that are known of no client: only those of model providers.
    pub(crate) const OF_PROVIDERS: Self = Self { startup: None, tools: None, prefix: "", name: 64 };

    /// Returns the most characters of a name behind the text that the client puts before it.
    pub(crate) fn max_name(&self, entry: &str) -> usize {
        self.name.saturating_sub(self.prefix.replace("{}", entry).chars().count())
    }
}

/// Variables that Codex passes on.
pub(crate) const OF_CODEX: [&str; 11] = [
    "HOME",
    "LOGNAME",
    "PATH",
    "SHELL",
    "USER",
    "__CF_USER_TEXT_ENCODING",
    "LANG",
    "LC_ALL",
    "TERM",
    "TMPDIR",
    "TZ",
];

/// Search path of programs that the desktop starts: the system's own folders.
pub(crate) const DESKTOP_PATH: &str = if cfg!(target_os = "macos") {
    "/usr/bin:/bin:/usr/sbin:/sbin"
} else {
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
};

/// Parts of the names of secrets.
const SECRET_PARTS: [&str; 6] = ["TOKEN", "SECRET", "PASSW", "KEY", "AUTH", "CREDENTIAL"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_gets_what_its_client_passes_on() {
        let names = |start: ClientStart| {
            let own = ["HOME", "PATH", "NOTION_TOKEN", "HTTPS_PROXY"];
            let own = own.map(|name| (OsString::from(name), OsString::from("/mine")));
            let environment = start.environment(own);
            let text = |(name, value): (OsString, OsString)| {
                format!("{}={}", name.display(), value.display())
            };
            environment.into_iter().map(text).collect::<Vec<_>>().join(" ")
        };
        let all = "HOME=/mine PATH=/mine NOTION_TOKEN=/mine HTTPS_PROXY=/mine";
        assert_eq!(names(ClientStart::TERMINAL), all);
        let others = "HOME=/mine NOTION_TOKEN=/mine HTTPS_PROXY=/mine";
        assert_eq!(names(ClientStart::DESKTOP), format!("{others} PATH={DESKTOP_PATH}"));
        let start = |passes| ClientStart { is_desktop: false, passes };
        assert_eq!(names(start(PassedVariables::Named(&OF_CODEX))), "HOME=/mine PATH=/mine");
        let harmless = "HOME=/mine PATH=/mine HTTPS_PROXY=/mine";
        assert_eq!(names(start(PassedVariables::WithoutSecrets)), harmless);
    }

    #[test]
    fn the_name_of_an_entry_takes_characters_from_names_of_tools() {
        let limits = ClientLimits { prefix: "mcp__{}__", ..ClientLimits::OF_PROVIDERS };
        assert_eq!((limits.max_name("weir"), limits.max_name("my-gateway")), (53, 47));
        assert_eq!(ClientLimits::OF_PROVIDERS.max_name("weir"), 64);
        assert_eq!(limits.max_name(&"x".repeat(80)), 0);
    }
}
