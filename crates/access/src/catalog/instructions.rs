//! Merged instructions of several upstreams as one text.
//!
//! Each upstream's instructions have its name as heading, and the prefix of its public names,
//! because the instructions mention only its own names.
//!
//! Invariants: the text is bounded; instructions that do not fit are omitted as a whole, and the
//! upstream is named.
//!
//! Decision: docs/decisions/0013-capabilities-and-instructions.md

use std::sync::Arc;

use super::ExportRules;
use weir_mcp::name::Naming;

/// Maximum length of the text, without the line that names the omitted upstreams.
pub(super) const MAX_BYTES: usize = 32 * 1024;

/// Builder of the text.
pub(super) struct Instructions<'a> {
    naming: &'a Naming,
    text: String,
    /// Upstreams whose instructions did not fit.
    omitted: Vec<&'a str>,
}

impl<'a> Instructions<'a> {
    pub(super) fn new(naming: &'a Naming) -> Self {
        Self { naming, text: String::new(), omitted: Vec::new() }
    }

    /// Adds an upstream's instructions. `has_names` says whether it has items with a prefixed name.
    pub(super) fn add(&mut self, export: &'a ExportRules, has_names: bool, instructions: &str) {
        let beginning = self.naming.beginning(&export.prefix);
        let mut section = String::new();
        // Without a prefix there is only one upstream, and no heading is needed.
        if !beginning.is_empty() {
            section += &format!("# {}\n\n", export.name);
            if has_names {
                section += &format!(
                    "(The names of its prompts and tools begin with `{beginning}` here.)\n\n"
                );
            }
        }
        section += instructions;
        let separator = if self.text.is_empty() { "" } else { "\n\n" };
        if self.text.len() + separator.len() + section.len() > MAX_BYTES {
            self.omitted.push(export.name.as_str());
            return;
        }
        self.text += separator;
        self.text += &section;
    }

    /// The text; `None` without any instructions.
    pub(super) fn finish(mut self) -> Option<Arc<str>> {
        if !self.omitted.is_empty() {
            self.text += &format!("\n\n[left out for their length: {}]", self.omitted.join(", "));
        }
        Some(self.text).filter(|text| !text.is_empty()).map(Arc::from)
    }
}
