//! What upstreams tell models about their use, as one text.
//!
//! Each upstream's words stand under its name, with what its names begin with here, since the words know
//! only its own. Promises: the text is bounded; what does not fit is left out whole, and named.
//!
//! Knows nothing of: who may hear it.

use std::sync::Arc;

use super::Outlet;
use crate::mcp::name::Naming;

/// How long the text may be, without the line that names what is left out.
pub(super) const MAX_BYTES: usize = 32 * 1024;

/// The text while it grows.
pub(super) struct Instructions<'a> {
    naming: &'a Naming,
    text: String,
    /// Upstreams whose words did not fit.
    left_out: Vec<&'a str>,
}

impl<'a> Instructions<'a> {
    pub(super) fn new(naming: &'a Naming) -> Self {
        Self { naming, text: String::new(), left_out: Vec::new() }
    }

    /// Adds an upstream's words. `has_names` tells whether anything of it has a name that is changed here.
    pub(super) fn add(&mut self, outlet: &'a Outlet, has_names: bool, words: &str) {
        let beginning = self.naming.beginning(&outlet.prefix);
        let mut section = String::new();
        // Names that stay as they are are those of the only upstream.
        if !beginning.is_empty() {
            section += &format!("# {}\n\n", outlet.name);
            if has_names {
                section += &format!(
                    "(The names of its prompts and tools begin with `{beginning}` here.)\n\n"
                );
            }
        }
        section += words;
        let between = if self.text.is_empty() { "" } else { "\n\n" };
        if self.text.len() + between.len() + section.len() > MAX_BYTES {
            self.left_out.push(outlet.name.as_str());
            return;
        }
        self.text += between;
        self.text += &section;
    }

    /// The text, if anybody said anything.
    pub(super) fn finish(mut self) -> Option<Arc<str>> {
        if !self.left_out.is_empty() {
            self.text += &format!("\n\n[left out for their length: {}]", self.left_out.join(", "));
        }
        Some(self.text).filter(|text| !text.is_empty()).map(Arc::from)
    }
}
