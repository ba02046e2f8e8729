//! Sections of a client's file that contain servers.

use std::path::Path;

use super::McpClient;
use super::document::{DocumentValue, Format};
use super::known::{ANY, CLIENTS};
use super::server::{ClientServer, read};
use super::server_lists::{ServerLists, of_project};

/// Servers of one file.
pub(crate) struct ServerSection {
    /// Servers in the order of the file, or the reason why an entry is unusable.
    pub(crate) servers: Vec<(String, Result<ClientServer, String>)>,
    /// Client of the file.
    pub(crate) client: &'static McpClient,
    /// Other keys of the file that contain servers and were not read.
    pub(crate) unread: Vec<String>,
}

/// Finds the servers in a document of any client; `None` if it has no key for servers. `folder` is
/// the current folder: Claude Code stores the servers of single projects beside the global ones.
/// `lists` are those in which the client enables and disables servers.
pub(crate) fn find(
    document: &DocumentValue,
    known: Option<&'static McpClient>,
    path: &Path,
    folder: &Path,
    lists: &ServerLists,
) -> Option<ServerSection> {
    let at = |keys: &[&str]| {
        let found = keys.iter().try_fold(document, |value, key| value.get(key))?;
        found.is_table().then_some(found)
    };
    let known_key = known.map(|client| [client.key]);
    let candidates = match &known_key {
        Some(key) => &[&key[..]][..],
        None => &SECTION_KEYS[..],
    };
    let mut sections = candidates.iter().filter_map(|keys| {
        let section = at(keys)?;
        // `mcp` also has other settings in files of other clients.
        (known.is_some() || **keys != [OPENCODE_KEY] || has_opencode_entries(section))
            .then_some((*keys, section))
    });
    let (keys, section) = sections.next().unzip();
    let unread = sections.filter(|(_, section)| !section.members().is_empty());
    let unread = unread.map(|(keys, _)| keys.join(".")).collect();
    let key = known_key.map(|[key]| key).or(keys.and_then(|keys| keys.last().copied()));
    let key = key.unwrap_or(ANY.key);
    let here = of_project(document, folder).and_then(|project| project.get(ANY.key));
    let here = here.filter(|_| key == ANY.key);
    if section.is_none() && here.is_none() {
        return None;
    }
    let nested = known.map(|client| client.section(document)).filter(|path| path.len() > 1);
    let nested = nested.and_then(|path| at(&path));
    let tables = || here.into_iter().chain(section).chain(nested);
    let entries = || tables().flat_map(DocumentValue::members);
    let client =
        known.unwrap_or_else(|| guess_client(key, path, entries().map(|(_, entry)| entry)));
    let is_shared = known.is_some_and(|it| it.project_file.is_some_and(|it| path.ends_with(it)));
    let mut servers: Vec<(String, Result<ClientServer, String>)> = Vec::new();
    let is_server = |(table, name): &(&DocumentValue, &String)| {
        let is_of_client = known.is_some_and(|client| client.nested_key.is_some());
        !is_of_client || table.get(name).is_some_and(|entry| !is_group(entry))
    };
    for (table, name) in tables()
        .flat_map(|it| it.members().iter().map(move |(name, _)| (it, name)))
        .filter(is_server)
    {
        // A project's own servers come first and hide global ones of the same name.
        if !servers.iter().any(|(taken, _)| taken == name)
            && let Some(entry) = table.get(name)
        {
            let server = read(name, entry, client).map(|mut server| {
                server.enabled &= lists.enable(name, is_shared);
                server
            });
            servers.push((name.clone(), server));
        }
    }
    Some(ServerSection { servers, client, unread })
}

/// Returns whether a table of OpenCode beside its servers is a group of servers or of limits: each
/// server has a `type`, or is only switched on or off.
fn is_group(entry: &DocumentValue) -> bool {
    entry.is_table() && ["type", "enabled"].iter().all(|key| entry.get(key).is_none())
}

/// Returns whether a table has an entry in the form of OpenCode.
fn has_opencode_entries(table: &DocumentValue) -> bool {
    let is_kind = |kind: &DocumentValue| {
        ["local", "remote"].iter().any(|it| *kind == DocumentValue::Text((*it).to_owned()))
    };
    table.members().iter().any(|(_, entry)| entry.get("type").is_some_and(is_kind))
}

/// Guesses the client of a file: by the key of its servers, by its path, and by keys that only one
/// client has.
fn guess_client<'v>(
    key: &str,
    path: &Path,
    entries: impl Iterator<Item = &'v DocumentValue> + Clone,
) -> &'static McpClient {
    let is_list = |entry: &DocumentValue| {
        entry.get("command").is_some_and(|it| matches!(it, DocumentValue::List(_)))
    };
    if entries.clone().any(is_list) {
        return McpClient::named("opencode").unwrap_or(&ANY);
    }
    if key != ANY.key {
        return CLIENTS.iter().find(|client| client.key == key).unwrap_or(&ANY);
    }
    let mut files = CLIENTS.iter().filter(|client| client.format == Format::Json);
    let is_common = ["mcp.json", "settings.json"].iter().any(|common| path.ends_with(common));
    let is_at = |file: &str| {
        path.ends_with(file) || !is_common && path.file_name() == Path::new(file).file_name()
    };
    let by_place = files.find(|client| {
        client.project_file.is_some_and(|file| path.ends_with(file))
            || client.user_files.iter().any(|(_, file)| is_at(file))
    });
    if let Some(client) = by_place {
        return client;
    }
    let has = |keys: &[&str]| {
        entries.clone().any(|entry| keys.iter().any(|key| entry.get(key).is_some()))
    };
    let name =
        match (has(&["httpUrl", "includeTools", "excludeTools", "trust"]), has(&["serverUrl"])) {
            (true, _) => "gemini",
            (false, true) => "windsurf",
            (false, false) => return &ANY,
        };
    McpClient::named(name).unwrap_or(&ANY)
}

/// Paths of the key that contains the servers; in the file of an unknown client, the first counts.
const SECTION_KEYS: [&[&str]; 7] = [
    &["mcpServers"],
    &["servers"],
    &["context_servers"],
    &["mcp_servers"],
    &["mcp", "servers"],
    &["extensions"],
    &[OPENCODE_KEY],
];

/// Key of the servers in a file of OpenCode.
const OPENCODE_KEY: &str = "mcp";
