//! Keys of `[guard]`, which an upstream's own table can also set.

use serde_json::json;

use super::KeySpec;
use super::shape::{self, ValueShape, size, word};
use super::tuning_keys::inherit;
use crate::config::guard::{ARGUMENTS, GuardConfig, HIDDEN, LOCK_FILE, OUTPUTS, PINNING, RESULTS};

pub(super) fn guard() -> KeySpec {
    let mut keys = rules();
    keys.push(
        KeySpec::new(
            "lock_file",
            ValueShape::Text("path", shape::NOT_EMPTY),
            "The file with the approved definitions, made for review in version control: `weir \
             pins diff` compares, `weir pins approve` writes. A relative path starts from the \
             folder of the file that contains it. Weir itself writes the file only under \
             `enforce`, for an upstream that it sees for the first time.",
        )
        .default(LOCK_FILE),
    );
    KeySpec::new(
        "guard",
        ValueShape::table(keys),
        "Content checks on requests and responses: arguments of prompts, malformed results, \
         invisible text, and redaction. An upstream's own `guard` table can override each key.",
    )
    .example(
        "[guard]\narguments = \"declared\"\noutput = \"refuse\"\nhidden_text = \"strip\"\n\
         results = [\"prompts\", \"tools\"]\nredact = { aws-key = \"AKIA[0-9A-Z]{16}\" }",
    )
}

/// Returns the `guard` key of an upstream's own table.
pub(super) fn inherited() -> KeySpec {
    let key = KeySpec::new(
        "guard",
        ValueShape::table(rules()),
        "Content checks for this upstream, where they differ from `[guard]`.",
    );
    inherit(key, "guard", "as in `[guard]`")
}

fn rules() -> Vec<KeySpec> {
    let GuardConfig { rules: default, pinning } = GuardConfig::default();
    vec![
        KeySpec::new(
            "arguments",
            ValueShape::choice(&ARGUMENTS),
            "Checks of the arguments of `prompts/get` before the request goes to the upstream. \
             `required`: they are strings of at most `max_argument`, and none is missing that the \
             prompt declares as required; `declared`: in addition there is none that the prompt \
             does not declare; `off`: they are not checked. Arguments of tools have a JSON schema, \
             which their upstream enforces.",
        )
        .default(word(&ARGUMENTS, &default.arguments)),
        KeySpec::new(
            "max_argument",
            ValueShape::Size,
            "The longest argument of a prompt, unless `arguments` is `off`.",
        )
        .default(size(default.max_argument)),
        KeySpec::new(
            "output",
            ValueShape::choice(&OUTPUTS),
            "Handling of a malformed result: a wrong role, content without the members that its \
             type needs, invalid base64, MIME types or URIs. Content of unknown types is accepted. \
             `flag`: the result is passed on, logged and counted; `refuse`: the client gets an \
             error instead.",
        )
        .default(word(&OUTPUTS, &default.output)),
        KeySpec::new(
            "hidden_text",
            ValueShape::choice(&HIDDEN),
            "Handling of text that a person does not see but a model reads, in results and in the \
             definitions of all items: control characters (including ESC), characters that change \
             the writing direction, tag characters, zero-width characters. `flag`: the text is \
             passed on, logged and counted; `escape`: such a character is written as `<U+202E>`; \
             `strip`: it is removed; `refuse`: the client gets an error instead of a result, and a \
             definition is left out of the lists. An item whose own name or URI contains such text \
             is left out under `escape` and `strip`, too.",
        )
        .default(word(&HIDDEN, &default.hidden_text)),
        KeySpec::new(
            "results",
            ValueShape::list(ValueShape::choice(&RESULTS)),
            "The kinds of items whose results `output` and `hidden_text` check. A large result is \
             streamed as it arrives, and is checked on the way if its kind is listed here; a \
             result that may be rewritten or refused is buffered until it is complete.",
        )
        .default(json!(["prompts"])),
        KeySpec::new(
            "redact",
            ValueShape::map(
                shape::PLAIN_NAME,
                ValueShape::Text("regular expression", shape::NOT_EMPTY),
            ),
            "Text to redact: names, and regular expressions in Rust's syntax. Each match, in any \
             string of any result, error or definition and in instructions, becomes \
             `[redacted:<name>]`; data in base64 is a string, too. An item is left out of the \
             lists if a pattern matches a text that its upstream must get back unchanged: the \
             item's name or URI, the name of an argument or of any member. With a pattern every \
             result is buffered until it is complete. An upstream's own patterns are added to \
             those of `[guard]`; a pattern of the same name replaces the inherited one. In one \
             string at most 1000 matches are replaced one by one, and the rest of the string as \
             one.",
        )
        .default(json!({}))
        .example("redact = { aws-key = \"AKIA[0-9A-Z]{16}\", token = \"ghp_[A-Za-z0-9]{36}\" }"),
        KeySpec::new(
            "pinning",
            ValueShape::choice(&PINNING),
            "Handling of a prompt, tool or resource template, or of instructions, that an upstream \
             has changed from the definition in `lock_file` (without that file: from its first \
             list since the start). `alert`: the change is served, and logged; `enforce`: a new or \
             changed definition is neither listed nor callable until it is approved, but the \
             definitions of the first list of a new upstream are approved and written to the file; \
             `locked`: like `enforce`, and only definitions that you put into the file are \
             approved. Resources are not pinned, because their definitions contain the size and \
             the date of their contents.",
        )
        .default(word(&PINNING, &pinning)),
    ]
}
