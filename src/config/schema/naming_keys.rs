//! The keys of `[naming]`.

use super::Key;
use super::keys::word;
use super::shape::{self, Shape};
use crate::config::Naming;
use crate::config::sections::{CHARACTERS, NAME_LENGTHS, NAMING_MODES};

pub(super) fn naming() -> Vec<Key> {
    let default = Naming::default();
    vec![
        Key::new(
            "mode",
            Shape::choice(&NAMING_MODES),
            "`always`: names are `<prefix><separator><name>`, so that no two upstreams clash. `none`: names have no \
             prefix, which works with exactly one enabled upstream.",
        )
        .or(word(&NAMING_MODES, &default.mode)),
        Key::new(
            "separator",
            Shape::Text("string", shape::SEPARATOR),
            "What stands between prefix and name: `_`, then at most 7 of A-Z, a-z, 0-9, `_` and `-`. Clients may have \
             stored the names, so change it only at the start.",
        )
        .or(default.separator),
        Key::new(
            "characters",
            Shape::choice(&CHARACTERS),
            "Characters that the names of prompts and tools may have. `portable`: A-Z, a-z, 0-9, `_` and `-`, which \
             all model providers take; other characters become `_`, and a short hash of the original name is added, \
             so that `a.b` and `a/b` stay two names and keep the same name after a restart. The original name \
             becomes the `title` of an item that has none. `any`: names keep the characters that their upstream \
             uses, which some clients replace and some providers answer with an error.",
        )
        .or(word(&CHARACTERS, &default.characters)),
        Key::new(
            "max_length",
            Shape::Count(NAME_LENGTHS),
            "The longest name of a prompt or tool in bytes, prefix included; a longer one keeps its end and gains a \
             short hash that stays the same. Model providers take 64, of which Claude Code uses 11 for `mcp__weir__`, \
             and some clients take 60 for the names of server and tool together. Set it lower if clients know Weir \
             by a longer name than `weir`. It must leave 13 behind the longest prefix and the separator.",
        )
        .or(default.max_length),
    ]
}
