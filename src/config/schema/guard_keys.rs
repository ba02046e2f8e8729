//! The keys of `[guard]`, which an upstream's own table can say, too.

use serde_json::json;

use super::Key;
use super::keys::word;
use super::shape::{self, Shape, size};
use super::tuning_keys::inherit;
use crate::config::guard::{ARGUMENTS, Guard, HIDDEN, LOCK_FILE, OUTPUTS, PINNING, RESULTS};

pub(super) fn guard() -> Key {
    let mut keys = rules();
    keys.push(
        Key::new(
            "lock_file",
            Shape::Text("path", shape::NOT_EMPTY),
            "The file in which approved definitions stand, made for review in version control: `weir pins diff` compares, \
             `weir pins approve` writes. A relative path starts from the folder of the file that it is written in. Weir \
             itself writes it only under `enforce`, where an upstream is seen for the first time.",
        )
        .or(LOCK_FILE),
    );
    Key::new(
        "guard",
        Shape::table(keys),
        "What goes in and comes out: arguments of prompts, the make of results, text that nobody sees, and what is not \
         passed on. An upstream's own `guard` table may say otherwise, key by key.",
    )
    .example(
        "[guard]\narguments = \"declared\"\noutput = \"refuse\"\nhidden_text = \"strip\"\n\
         results = [\"prompts\", \"tools\"]\nredact = { aws-key = \"AKIA[0-9A-Z]{16}\" }",
    )
}

/// The same keys in an upstream's own table.
pub(super) fn inherited() -> Key {
    let key = Key::new(
        "guard",
        Shape::table(rules()),
        "What goes to and comes from this upstream, where that differs from `[guard]`.",
    );
    inherit(key, "guard", "as in `[guard]`")
}

fn rules() -> Vec<Key> {
    let Guard { rules: default, pinning } = Guard::default();
    vec![
        Key::new(
            "arguments",
            Shape::choice(&ARGUMENTS),
            "How the arguments of `prompts/get` are checked before the upstream is asked. `required`: they are strings \
             of at most `max_argument`, and none is missing that the prompt declares as required; `declared`: and none is \
             there that it does not declare; `off`: they are not read. Arguments of tools have a JSON schema, which \
             their upstream holds them to.",
        )
        .or(word(&ARGUMENTS, &default.arguments)),
        Key::new("max_argument", Shape::Size, "The longest argument of a prompt, unless `arguments` is `off`.")
            .or(size(default.max_argument)),
        Key::new(
            "output",
            Shape::choice(&OUTPUTS),
            "What becomes of a malformed result: a wrong role, content without what its type needs, base64, MIME types \
             and URIs that are none. Content of unknown types passes. `flag`: it is passed on, logged and counted; \
             `refuse`: the client gets an error instead.",
        )
        .or(word(&OUTPUTS, &default.output)),
        Key::new(
            "hidden_text",
            Shape::choice(&HIDDEN),
            "What becomes of text that a person does not see and a model reads, in results and in the definitions of all \
             items: control characters (ESC among them), what turns the direction of writing, tag characters, characters \
             without width. `flag`: it is passed on, logged and counted; `escape`: such a character is written as \
             `<U+202E>`; `strip`: it is taken out; `refuse`: the client gets an error instead of a result, and a definition \
             is left out of the lists. An item whose own name or URI holds such text is left out under `escape` and \
             `strip`, too.",
        )
        .or(word(&HIDDEN, &default.hidden_text)),
        Key::new(
            "results",
            Shape::list(Shape::choice(&RESULTS)),
            "Whose results `output` and `hidden_text` look at. A large result passes as it arrives, read along or, where \
             nobody looks, unread; one that may be rewritten or refused is held until it is whole.",
        )
        .or(json!(["prompts"])),
        Key::new(
            "redact",
            Shape::map(shape::PLAIN_NAME, Shape::Text("regular expression", shape::NOT_EMPTY)),
            "What is not passed on: names, and regular expressions in Rust's syntax. What matches, in any string of any \
             result, error or definition and in instructions, becomes `[redacted:<name>]`; data in base64 is a string, too. An \
             item is left out of the lists if something matches in what its upstream has to get back as it is: the item's \
             name or URI, the name of an argument or of any member. With a pattern every result is held until it is whole. An upstream's own patterns are added to those of `[guard]`; one of the same name \
             replaces it. Of one string at most 1000 matches are replaced one by one, and its rest as one.",
        )
        .or(json!({}))
        .example("redact = { aws-key = \"AKIA[0-9A-Z]{16}\", token = \"ghp_[A-Za-z0-9]{36}\" }"),
        Key::new(
            "pinning",
            Shape::choice(&PINNING),
            "What happens when an upstream changes the definition of a prompt, tool or resource template, or its \
             instructions, from what stands in `lock_file` (without one: from what it listed first since the start). \
             `alert`: it is served, and logged; `enforce`: what is new or changed is neither listed nor callable until it \
             is approved, but what an upstream lists when it is first seen is approved and written down; `locked`: the \
             same, and nothing is approved but what you put into the file. What is not pinned: resources, whose \
             definitions tell the size and the date of their contents.",
        )
        .or(word(&PINNING, &pinning)),
    ]
}
