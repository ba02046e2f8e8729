//! Commands `weir connect` that mend something in a client's file.

use std::fmt;
use std::path::Path;

use super::DEFAULT_NAME;
use crate::cli::clients::McpClient;
use crate::cli::clients::places::Scope;
use weir_base::text::shell_word::ShellWord;

/// Command `weir connect` for a client.
pub(crate) struct ConnectCommand<'a> {
    pub(crate) client: &'a McpClient,
    pub(crate) entry: &'a str,
    pub(crate) scope: Scope,
    /// Option that says what it does.
    pub(crate) action: &'a str,
    /// Configuration, if it has to be named.
    pub(crate) config: Option<&'a Path>,
    /// The client starts Weir, although the configuration is for several clients.
    pub(crate) is_stdio: bool,
}

impl fmt::Display for ConnectCommand<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weir connect {} {}", self.client.name, self.action)?;
        if self.entry != DEFAULT_NAME {
            write!(f, " --name {}", ShellWord(self.entry))?;
        }
        if self.scope == Scope::Project {
            f.write_str(" --scope project")?;
        }
        if self.is_stdio {
            f.write_str(" --stdio")?;
        }
        match self.config {
            Some(config) => write!(f, " --config {}", ShellWord(&config.display().to_string())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_names_what_is_not_the_default() {
        let client = McpClient::named("cursor").expect("a client");
        let command = |entry, scope, config: Option<&Path>| {
            let is_stdio = config.is_some();
            ConnectCommand { client, entry, scope, action: "--write", config, is_stdio }.to_string()
        };
        assert_eq!(command("weir", Scope::User, None), "weir connect cursor --write");
        let config = Some(Path::new("/home/ada/my weir.toml"));
        assert_eq!(
            command("team", Scope::Project, config),
            "weir connect cursor --write --name team --scope project --stdio --config '/home/ada/my \
             weir.toml'"
        );
    }
}
