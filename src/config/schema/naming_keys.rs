//! Keys of `[naming]`.

use super::KeySpec;
use super::shape::{self, ValueShape, word};
use crate::config::NamingConfig;
use crate::config::naming::{CHARACTERS, NAME_LENGTHS, NAMING_MODES};

pub(super) fn naming() -> Vec<KeySpec> {
    let default = NamingConfig::default();
    vec![
        KeySpec::new(
            "mode",
            ValueShape::choice(&NAMING_MODES),
            "`always`: names are `<prefix><separator><name>`, so that no two upstreams clash. \
             `none`: names have no prefix; this requires exactly one enabled upstream.",
        )
        .default(word(&NAMING_MODES, &default.mode)),
        KeySpec::new(
            "separator",
            ValueShape::Text("string", shape::SEPARATOR),
            "The text between prefix and name: `_`, then at most 7 of A-Z, a-z, 0-9, `_` and `-`. \
             Clients may have stored the names, so choose it before the first use.",
        )
        .default(default.separator),
        KeySpec::new(
            "characters",
            ValueShape::choice(&CHARACTERS),
            "Characters that the names of prompts and tools may have. `portable`: A-Z, a-z, 0-9, \
             `_` and `-`, which all model providers accept; other characters become `_`, and a \
             short hash of the original name is added, so that `a.b` and `a/b` remain two names, \
             which are the same after a restart. The original name becomes the `title` of an item \
             that has none. `any`: names keep the characters that their upstream uses; some \
             clients replace them, and some providers refuse them with an error.",
        )
        .default(word(&CHARACTERS, &default.characters)),
        KeySpec::new(
            "max_length",
            ValueShape::Count(NAME_LENGTHS),
            "The longest name of a prompt or tool in bytes, prefix included; a longer one keeps \
             its end and gets a short hash that stays the same. Model providers accept 64, of \
             which Claude Code uses 11 for `mcp__weir__`, and some clients accept 60 for the names \
             of server and tool together. Set it lower if clients use a longer name than `weir` \
             for this server. It must leave 13 bytes after the longest prefix and the separator.",
        )
        .default(default.max_length),
    ]
}
