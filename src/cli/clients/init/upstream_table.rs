//! Table of one upstream, as an import and `weir add` write it.

use toml_edit::Table;

use crate::cli::clients::init::secrets::SecretStore;
use crate::cli::clients::init::texts::UpstreamWriter;
use crate::cli::clients::server::ClientServer;
use crate::cli::clients::variables::TranslateContext;
use crate::cli::output::render::sanitize_line;

/// Table of an upstream, with the messages about it.
pub(crate) struct UpstreamTable {
    /// Content of `[upstreams.<name>]`; the notes are comments above it.
    pub(crate) table: Table,
    /// Secrets that were moved, and notes for the user.
    pub(crate) messages: Vec<String>,
}

impl UpstreamTable {
    /// Converts a server. The error says why Weir cannot use it.
    pub(crate) fn of(
        server: &ClientServer,
        name: &str,
        context: TranslateContext<'_>,
        store: &mut SecretStore,
    ) -> Result<Self, String> {
        let mut writer = UpstreamWriter::new(name, context, store);
        writer.write(server)?;
        let UpstreamWriter { mut table, notes, moved, .. } = writer;
        let comments = notes.iter().map(|note| format!("# {}\n", sanitize_line(note)));
        table.decor_mut().set_prefix(format!("\n{}", comments.collect::<String>()));
        Ok(Self { table, messages: moved.into_iter().chain(notes).collect() })
    }
}
