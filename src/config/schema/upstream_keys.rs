//! The keys of `[upstreams.<name>]` but those that it can inherit, and where a secret can be.

use serde_json::{Value, json};

use super::keys::word;
use super::shape::{self, Shape};
use super::{Key, guard_keys, tuning_keys};
use crate::config::access::KINDS;
use crate::config::headers::{OWN_HEADERS, SCHEMES};
use crate::config::upstream_defaults::{
    LIMITS_NOT_FOR_A_LIBRARY, NOT_FOR_A_LIBRARY, TIMEOUTS_NOT_FOR_A_LIBRARY,
};
use crate::config::upstreams::TRANSPORTS;

pub(super) fn upstreams() -> Key {
    let mut keys = place();
    // An upstream's own table says these instead of what it inherits.
    keys.extend(tuning_keys::inherited());
    keys.push(guard_keys::inherited());
    keys.extend(outlets());
    Key::new(
        "upstreams",
        Shape::map(shape::UPSTREAM_NAME, Shape::Table { keys, rules: rules() }),
        "One MCP server. The name of the table is a lower-case letter, then at most 31 of a-z, 0-9 and `-`. Exactly \
         one of `prompts_dir`, `command` and `url` says where it is.",
    )
}

// === Where it is ===

fn place() -> Vec<Key> {
    let mut keys = vec![
        Key::new(
            "prompts_dir",
            Shape::Text("path", shape::NOT_EMPTY),
            "A folder of Markdown files that Weir itself serves as prompts. A relative path starts from the folder of \
             the file that it is written in.",
        )
        .example("prompts_dir = \"./prompts\""),
        Key::new(
            "command",
            Shape::text(),
            "A program that speaks MCP over standard input and output. Weir starts it, without a shell, and starts it \
             again when it ends. A name without a slash is looked up in `PATH`.",
        )
        .example("command = \"npx\""),
        Key::new(
            "url",
            Shape::Text("http or https URL", shape::URL),
            "The endpoint of a server on the network. Credentials belong in `auth` or `headers`, not here.",
        )
        .example("url = \"https://api.githubcopilot.com/mcp/\""),
        Key::new(
            "enabled",
            Shape::Boolean,
            "With `false` the upstream is not started and not served. Its table is checked all the same, but its \
             variables and secrets need not be there.",
        )
            .or(true),
        Key::new(
            "required",
            Shape::Boolean,
            "With `true` Weir is not ready (`/readyz` of `[admin]`) while the upstream is not up, and gets no clients \
             from a load balancer. All other upstreams are served either way.",
        )
            .or(false),
        Key::new(
            "prefix",
            Shape::Text("string", shape::UPSTREAM_NAME),
            "What clients see before the names of its items; like the name of a table, and no two alike. Rules go by \
             the name of the table, whatever the prefix.",
        )
        .or_else("the name of the table"),
    ];
    keys.extend(process());
    keys.extend(network());
    keys
}

fn process() -> Vec<Key> {
    let any = || Shape::Text("string", shape::ANYTHING);
    vec![
        Key::new("args", Shape::list(any()), "The arguments of `command`, one string each.")
            .or(json!([]))
            .example("args = [\"-y\", \"@modelcontextprotocol/server-everything\"]"),
        Key::new(
            "env",
            Shape::map(shape::VARIABLE_NAME, Shape::Secret(shape::ANYTHING)),
            "Variables to set for `command`. Each value is a secret: a string, or one of `{ env = \"VAR\" }`, `{ \
             file = \"path\" }`, `{ command = [\"…\"] }`.",
        )
        .or(json!({}))
        .example("env = { LOG_LEVEL = \"info\", API_KEY = { env = \"EVERYTHING_KEY\" } }"),
        Key::new(
            "pass_env",
            Shape::list(Shape::Text("name of a variable", shape::VARIABLE_NAME)),
            "Variables of Weir's own environment to hand on to `command`. Without it a program gets `PATH`, `HOME`, \
             `LANG`, `TMPDIR`, `USER`, `SHELL` and `TERM`, and no others.",
        )
        .or(json!([]))
        .example("pass_env = [\"HTTPS_PROXY\"]"),
        Key::new(
            "cwd",
            Shape::Text("path", shape::NOT_EMPTY),
            "The folder to start `command` in. A relative path starts from the folder of the file that it is written \
             in.",
        )
        .or_else("where Weir was started"),
    ]
}

fn network() -> Vec<Key> {
    vec![
        Key::new(
            "headers",
            Shape::map(shape::header_name(&OWN_HEADERS), Shape::Secret(shape::HEADER_VALUE)),
            "Headers to send with every request to `url`. Each value is a secret, as in `env`. Headers of the protocol \
             itself, such as `Host`, `Content-Type` and all that begin with `Mcp-`, cannot be set.",
        )
        .or(json!({}))
        .example("headers = { X-Team = { file = \"secrets/team\" } }"),
        Key::new(
            "auth",
            Shape::Table { keys: credentials(), rules: credentials_rules() },
            "How Weir shows the server at `url` who it is: an `Authorization` header, made of the following keys. Not \
             beside an `Authorization` in `headers`.",
        )
        .example("auth = { type = \"bearer\", token = { command = [\"gh\", \"auth\", \"token\"] } }"),
        Key::new(
            "transport",
            Shape::choice(&TRANSPORTS),
            "How the server at `url` is spoken to: `http` is Streamable HTTP, `sse` the older HTTP+SSE pair of \
             2024-11-05, which goes with `era` `auto` or `legacy` only. `auto` tries the first, then the second.",
        )
        .or(word(&TRANSPORTS, &None)),
    ]
}

fn credentials() -> Vec<Key> {
    vec![
        Key::new(
            "type",
            Shape::choice(&SCHEMES),
            "`bearer` sends `token`, `basic` sends `user` and `password`, `none` sends nothing.",
        )
        .required(),
        Key::new(
            "token",
            Shape::Secret(shape::TOKEN),
            "The token alone, without the word Bearer; a secret. For `type = \"bearer\"`, and required there.",
        ),
        Key::new(
            "user",
            Shape::Text("string", shape::USER),
            "The name, without a colon. For `type = \"basic\"`, and required there.",
        ),
        Key::new(
            "password",
            Shape::Secret(shape::PASSWORD),
            "The password; a secret. For `type = \"basic\"`, and required there.",
        ),
    ]
}

/// The ways to say where a secret is; exactly one of them.
pub(super) fn secret() -> Vec<Key> {
    vec![
        Key::new(
            "env",
            Shape::Text("name of a variable", shape::VARIABLE_NAME),
            "The variable of Weir's environment that holds the secret. It must be set.",
        )
        .example("token = { env = \"GITHUB_TOKEN\" }"),
        Key::new(
            "file",
            Shape::Text("path", shape::NOT_EMPTY),
            "The file that holds the secret and nothing else; one newline at its end is left out. At most 64 KiB. A \
             relative path starts from the folder of the file that it is written in; one that others on the machine \
             can read is refused. One that is not Weir's own may be read by its group.",
        )
        .example("token = { file = \"secrets/github-token\" }"),
        Key::new(
            "command",
            Shape::List { of: Box::new(Shape::Text("string", shape::ANYTHING)), count: (1, None) },
            "A program and its arguments, whose output is the secret; one newline at its end is left out. It is started \
             without a shell, may take at most 30 s, and is not started by `weir check --offline`.",
        )
        .example("token = { command = [\"op\", \"read\", \"op://vault/github/token\"] }"),
    ]
}

// === What leaves it ===

fn outlets() -> Vec<Key> {
    let meanings = [
        "Which prompts leave this upstream at all, before any role is asked.",
        "Which tools leave this upstream at all, before any role is asked.",
        "Which resources and resource templates leave this upstream at all, before any role is asked.",
    ];
    let pattern = || Shape::list(Shape::Text("pattern", shape::ITEM_PATTERN));
    let kind = |(kind, meaning)| {
        let allow = match kind {
            "resources" => "Patterns of URIs that leave it; `*` matches any run of characters.",
            _ => "Patterns of original names that leave it; `*` matches any run of characters.",
        };
        let allow = Key::new("allow", pattern(), allow).or(json!(["*"]));
        let deny = "Patterns of what does not leave it, although `allow` names it: deny wins.";
        let deny = Key::new("deny", pattern(), deny).or(json!([]));
        Key::new(kind, Shape::table(vec![allow, deny]), meaning)
    };
    let mut keys: Vec<_> = KINDS.into_iter().zip(meanings).map(kind).collect();
    keys.push(
        Key::new(
            "rename",
            Shape::map(shape::RENAMED, Shape::Text("string", shape::PLAIN_NAME)),
            "New names for items: `prompts/<original name>` or `tools/<original name>`, and the new name, 1 to 64 of \
             A-Z, a-z, 0-9, `_`, `.` and `-`. The prefix is put before it; rules go on to use the original name.",
        )
        .or(json!({}))
        .example("rename = { \"prompts/simple-prompt\" = \"hello\", \"tools/echo\" = \"say\" }"),
    );
    keys
}

// === What holds between the keys ===

fn rules() -> Value {
    let any = |keys: &[&str]| -> Vec<Value> {
        keys.iter().map(|key| json!({ "required": [key] })).collect()
    };
    let holds_any = |table: &str, keys: &[&str]| json!({ "required": [table], "properties": { table: { "anyOf": any(keys) } } });
    let mut without_effect = any(&NOT_FOR_A_LIBRARY);
    without_effect.push(holds_any("timeouts", &TIMEOUTS_NOT_FOR_A_LIBRARY));
    without_effect.push(holds_any("limits", &LIMITS_NOT_FOR_A_LIBRARY));
    let sse_is_legacy = json!({
        "required": ["transport", "era"],
        "properties": { "transport": { "const": "sse" }, "era": { "const": "modern" } },
    });
    let authorization = "^[Aa][Uu][Tt][Hh][Oo][Rr][Ii][Zz][Aa][Tt][Ii][Oo][Nn]$";
    let is_named = json!({ "not": { "propertyNames": { "not": { "pattern": authorization } } } });
    let authorized_twice =
        json!({ "required": ["auth", "headers"], "properties": { "headers": is_named } });
    json!({
        "oneOf": any(&["prompts_dir", "command", "url"]),
        "dependencies": {
            "prompts_dir": { "not": { "anyOf": without_effect } },
            "args": ["command"],
            "env": ["command"],
            "pass_env": ["command"],
            "cwd": ["command"],
            "headers": ["url"],
            "auth": ["url"],
            "transport": ["url"],
        },
        "not": { "anyOf": [sse_is_legacy, authorized_twice] },
    })
}

fn credentials_rules() -> Value {
    let with = |kind: &str, wanted: &[&str], unwanted: &[&str]| {
        let unwanted: Vec<_> = unwanted.iter().map(|key| json!({ "required": [key] })).collect();
        json!({
            "properties": { "type": { "const": kind } },
            "required": wanted,
            "not": { "anyOf": unwanted },
        })
    };
    let told_by_a_variable = json!({ "type": "string", "pattern": shape::VARIABLE });
    json!({ "anyOf": [
        with("none", &[], &["token", "user", "password"]),
        with("bearer", &["token"], &["user", "password"]),
        with("basic", &["user", "password"], &["token"]),
        { "properties": { "type": told_by_a_variable } },
    ] })
}
