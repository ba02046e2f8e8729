//! `[naming]`: public names of items.

use std::ops::RangeInclusive;

use super::upstreams::Upstreams;
use crate::config::reader::report::ValueError;
use crate::config::reader::table_reader::TableReader;
use crate::config::reader::value;
use crate::mcp::name::{ALTERED_LENGTH, Characters};

/// Public names of items.
#[derive(Clone, Debug, PartialEq)]
pub struct NamingConfig {
    /// Use of the upstream's prefix.
    pub mode: NamingMode,
    /// Text between prefix and name; begins with `_`.
    pub separator: String,
    /// Characters that names may have; others are replaced.
    pub characters: Characters,
    /// The longest name, in bytes; longer ones are shortened.
    pub max_length: usize,
}

impl Default for NamingConfig {
    fn default() -> Self {
        Self {
            mode: NamingMode::Always,
            separator: "__".to_owned(),
            characters: Characters::Portable,
            max_length: 53,
        }
    }
}

/// Use of the upstream's prefix in names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamingMode {
    /// Names have a prefix, whatever the number of upstreams.
    Always,
    /// Names have no prefix; there is exactly one upstream.
    None,
}

pub(super) fn read_naming(t: &TableReader<'_>, upstreams: &Upstreams) -> NamingConfig {
    let default = NamingConfig::default();
    let mode = t.read("mode", value::choice(&NAMING_MODES)).unwrap_or(default.mode);
    let enabled_upstreams = upstreams.enabled;
    if mode == NamingMode::None && enabled_upstreams != 1 {
        let what =
            format!("\"none\" is for exactly one upstream, and {enabled_upstreams} are enabled");
        t.error(
            "mode",
            ValueError::new(what, "write \"always\", or set enabled = false on the others"),
        );
    }
    let naming = NamingConfig {
        mode,
        separator: t.read("separator", value::separator).unwrap_or(default.separator),
        characters: t.read("characters", value::choice(&CHARACTERS)).unwrap_or(default.characters),
        max_length: t.read("max_length", value::count(NAME_LENGTHS)).unwrap_or(default.max_length),
    };
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

pub(super) const NAMING_MODES: [(&str, NamingMode); 2] =
    [("always", NamingMode::Always), ("none", NamingMode::None)];

pub(super) const CHARACTERS: [(&str, Characters); 2] =
    [("portable", Characters::Portable), ("any", Characters::Any)];

pub(super) const NAME_LENGTHS: RangeInclusive<usize> = 32..=128;
