//! Lists in which clients enable and disable servers by their names, apart from the entries.

use std::path::Path;

use super::document::DocumentValue;
use super::known::ANY;

/// Names of the servers that a client stores for a project beside the global ones; they hide those
/// of the project's own file.
pub(crate) fn names_of_project(document: &DocumentValue, folder: &Path) -> Vec<String> {
    let servers = of_project(document, folder).and_then(|project| project.get(ANY.key));
    servers.into_iter().flat_map(DocumentValue::members).map(|(name, _)| name.clone()).collect()
}

/// Table of a project in the user's file of Claude Code.
pub(crate) fn of_project<'v>(
    document: &'v DocumentValue,
    folder: &Path,
) -> Option<&'v DocumentValue> {
    document.get("projects")?.get(&folder.display().to_string())
}

/// Lists in which a client enables and disables servers by their names.
#[derive(Debug, Default)]
pub(crate) struct ServerLists {
    /// Servers that may be used, if not all.
    allowed: Option<Vec<String>>,
    /// Servers that are disabled.
    disabled: Vec<String>,
    /// Servers of the project's shared file that are disabled.
    disabled_shared: Vec<String>,
}

impl ServerLists {
    /// Reads the lists of a client's files; of two lists of Gemini CLI, that of the first file
    /// counts, as in its merged settings.
    pub(crate) fn read(documents: &[&DocumentValue], folder: &Path) -> Self {
        let names = |list: &DocumentValue| {
            list.elements().iter().filter_map(DocumentValue::text).collect::<Vec<_>>()
        };
        let of_gemini = |key: &str, older: &str| {
            let list = documents.iter().find_map(|document| {
                let list = document.get("mcp").and_then(|mcp| mcp.get(key));
                list.or_else(|| document.get(older)).filter(|list| **list != DocumentValue::Null)
            });
            list.map(names)
        };
        let of_claude = |key: &str| {
            let places = documents.iter().flat_map(|it| [Some(*it), of_project(it, folder)]);
            let lists = places.flatten().filter_map(|place| place.get(key));
            lists.flat_map(names).collect::<Vec<_>>()
        };
        let mut disabled = of_gemini("excluded", "excludeMCPServers").unwrap_or_default();
        disabled.extend(of_claude("disabledMcpServers"));
        Self {
            allowed: of_gemini("allowed", "allowMCPServers"),
            disabled,
            disabled_shared: of_claude("disabledMcpjsonServers"),
        }
    }

    /// Whether the client would run this server; `is_shared` if it is of the project's file.
    pub(crate) fn enable(&self, name: &str, is_shared: bool) -> bool {
        let has = |list: &[String]| list.iter().any(|it| it == name);
        self.allowed.as_deref().is_none_or(has)
            && !has(&self.disabled)
            && !(is_shared && has(&self.disabled_shared))
    }
}
