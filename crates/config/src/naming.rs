//! `[naming]`: public names of items.

use strum::{IntoStaticStr, VariantArray};

use super::upstreams::Upstreams;
use crate::keys::{Described, count, settings, shape, string, variant};
use crate::reader::report::ValueError;
use crate::reader::table_reader::TableReader;
use crate::reader::value;
use weir_mcp::name::{ALTERED_LENGTH, Characters};

settings! {
    /// Names of prompts and tools towards clients. Rules, limits, renames, approved definitions and
    /// the `item` of the audit log use the original name; `weir check` lists the names that are
    /// altered.
    pub struct NamingConfig {
        /// Use of prefixes in names. `always`: names are `<prefix><separator><name>`, so that no
        /// two upstreams clash. `none`: names have no prefix; this requires exactly one enabled
        /// upstream.
        mode: NamingMode = NamingMode::Always, variant();
        /// The text between prefix and name: `_`, then at most 7 of A-Z, a-z, 0-9, `_` and `-`.
        /// Clients may have stored the names, so choose it before the first use.
        separator: String = "__".to_owned(), string("string", shape::SEPARATOR, value::separator);
        /// Characters that the names of prompts and tools may have. `portable`: A-Z, a-z, 0-9, `_`
        /// and `-`, which all model providers accept; other characters become `_`, and a short hash
        /// of the original name is added, so that `a.b` and `a/b` remain two names, which are the
        /// same after a restart. The original name becomes the `title` of an item that has none.
        /// `any`: names keep the characters that their upstream uses; some clients replace them,
        /// and some providers refuse them with an error.
        characters: Characters = Characters::Portable, variant();
        /// The longest name of a prompt or tool in bytes, prefix included; a longer one keeps its
        /// end and gets a short hash that stays the same. Model providers accept 64, of which
        /// Claude Code uses 11 for `mcp__weir__`, and some clients accept 60 for the names of
        /// server and tool together. Set it lower if clients use a longer name than `weir` for this
        /// server. It must leave 13 bytes after the longest prefix and the separator.
        max_length: usize = 53, count(32..=128);
    }
}

/// Use of the upstream's prefix in names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum NamingMode {
    /// Names have a prefix, whatever the number of upstreams.
    Always,
    /// Names have no prefix; there is exactly one upstream.
    None,
}

pub(super) fn read_naming(t: &TableReader<'_>, upstreams: &Upstreams) -> NamingConfig {
    let naming = NamingConfig::read(t);
    let mode = naming.mode;
    let enabled_upstreams = upstreams.enabled();
    if mode == NamingMode::None && enabled_upstreams != 1 {
        let what =
            format!("\"none\" is for exactly one upstream, and {enabled_upstreams} are enabled");
        t.error(
            "mode",
            ValueError::new(what, "write \"always\", or set enabled = false on the others"),
        );
    }
    let prefixes = upstreams.summaries.iter().filter(|it| it.enabled && mode == NamingMode::Always);
    let longest = prefixes.filter_map(|it| it.prefix.as_deref()).max_by_key(|it| it.len());
    let needed = longest.map_or(0, |it| it.len() + naming.separator.len() + ALTERED_LENGTH);
    if naming.max_length < needed {
        let max_length = naming.max_length;
        let longest = longest.unwrap_or_default();
        let what = format!("{max_length} leaves no space for names after the prefix {longest:?}");
        let remedy = format!("write at least {needed}, or give that upstream a shorter prefix");
        t.error("max_length", ValueError::new(what, remedy));
    }
    naming
}
