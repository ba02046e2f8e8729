//! Variables of an entry: those that it sets, and those that the client replaces in its texts.

use std::env::vars_os;
use std::ffi::OsString;

use crate::cli::clients::McpClient;
use crate::cli::clients::server::{ClientServer, ServerTransport};
use crate::cli::clients::variables::{TranslateContext, translate};

/// Variables of one entry, in the environment of this process.
pub(super) struct EntryVariables<'a> {
    pub(super) client: &'static McpClient,
    pub(super) server: &'a ClientServer,
}

impl EntryVariables<'_> {
    /// Environment of the program that the entry starts.
    pub(super) fn environment(&self) -> Vec<(OsString, OsString)> {
        let mut environment = self.client.start.environment(vars_os());
        let ServerTransport::Process { env, pass_env, .. } = &self.server.transport else {
            return environment;
        };
        let mut set = |name: &str, value: Option<OsString>| {
            environment.retain(|(other, _)| *other != *name);
            environment.extend(value.map(|value| (name.into(), value)));
        };
        pass_env.iter().for_each(|name| set(name, std::env::var_os(name)));
        for (name, value) in env {
            set(name, self.expand(value).map(Into::into));
        }
        environment
    }

    /// Names of the variables that the entry sets or passes on.
    pub(super) fn given(&self) -> Vec<String> {
        match &self.server.transport {
            ServerTransport::Process { env, pass_env, .. } => {
                env.iter().map(|(name, _)| name).chain(pass_env).cloned().collect()
            }
            ServerTransport::Http { .. } => Vec::new(),
        }
    }

    /// Returns the value of a variable that the entry sets.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        let ServerTransport::Process { env, .. } = &self.server.transport else {
            return None;
        };
        let (_, value) = env.iter().find(|(own, _)| own == name)?;
        self.expand(value)
    }

    /// Returns a text with the variables that the client replaces; `None` if one is not set here,
    /// or only the client knows it.
    pub(super) fn expand(&self, text: &str) -> Option<String> {
        let translated = translate(text, &self.context());
        let (mut expanded, mut rest) = (String::new(), &*translated.text);
        while let Some((before, after)) = rest.split_once('$') {
            expanded.push_str(before);
            let reference = after.strip_prefix('{').and_then(|after| after.split_once('}'));
            rest = match reference {
                Some((inner, after)) => {
                    let split = inner.split_once(":-");
                    let (name, default) = split.map_or((inner, None), |(it, or)| (it, Some(or)));
                    expanded.push_str(&std::env::var(name).ok().or(default.map(str::to_owned))?);
                    after
                }
                None => {
                    expanded.push('$');
                    after.strip_prefix('$').unwrap_or(after)
                }
            };
        }
        expanded.push_str(rest);
        Some(expanded)
    }

    /// Returns the name of the variable that a text consists of.
    pub(super) fn single(&self, text: &str) -> Option<String> {
        translate(text, &self.context()).as_single_variable().map(str::to_owned)
    }

    fn context(&self) -> TranslateContext<'static> {
        TranslateContext { variables: self.client.variables, project: None, inputs: &[], own: &[] }
    }
}
