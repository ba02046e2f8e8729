//! Keys of `[upstreams.<name>]` that are not inherited, and the keys of a secret's source.

use serde_json::{Value, json};

use super::shape::{self, ValueShape, word};
use super::{KeySpec, guard_keys, tuning_keys};
use crate::config::access::KINDS;
use crate::config::headers::{OWN_HEADERS, SCHEMES};
use crate::config::upstream_defaults::{
    LIMITS_NOT_FOR_A_LIBRARY, NOT_FOR_A_LIBRARY, TIMEOUTS_NOT_FOR_A_LIBRARY,
};
use crate::config::upstreams::TRANSPORTS;

pub(super) fn upstreams() -> KeySpec {
    let mut keys = source_keys();
    // These keys override the inherited values.
    keys.extend(tuning_keys::inherited());
    keys.push(guard_keys::inherited());
    keys.extend(export_keys());
    KeySpec::new(
        "upstreams",
        ValueShape::map(shape::UPSTREAM_NAME, ValueShape::Table { keys, rules: rules() }),
        "One upstream MCP server. The name of the table is a lower-case letter, then at most 31 of \
         a-z, 0-9 and `-`. Exactly one of `prompts_dir`, `command` and `url` says where the server \
         is.",
    )
}

// === Source ===

fn source_keys() -> Vec<KeySpec> {
    let mut keys = vec![
        KeySpec::new(
            "prompts_dir",
            ValueShape::Text("path", shape::NOT_EMPTY),
            "A folder of Markdown files that Weir itself serves as prompts. A relative path starts \
             from the folder of the file that contains it.",
        )
        .example("prompts_dir = \"./prompts\""),
        KeySpec::new(
            "command",
            ValueShape::text(),
            "A program that speaks MCP over standard input and output. Weir starts it without a \
             shell, and restarts it when it ends. A name without a slash is looked up in `PATH`.",
        )
        .example("command = \"npx\""),
        KeySpec::new(
            "url",
            ValueShape::Text("http or https URL", shape::URL),
            "The endpoint of a server on the network. Credentials belong in `auth` or `headers`, \
             not here.",
        )
        .example("url = \"https://api.githubcopilot.com/mcp/\""),
        KeySpec::new(
            "enabled",
            ValueShape::Boolean,
            "With `false` the upstream is not started and not served. Its table is still checked, \
             but its variables and secrets need not exist.",
        )
        .default(true),
        KeySpec::new(
            "required",
            ValueShape::Boolean,
            "With `true` Weir is not ready (`/readyz` of `[admin]`) while the upstream is not \
             connected, so that a load balancer sends it no clients. All other upstreams are \
             served either way.",
        )
        .default(false),
        KeySpec::new(
            "prefix",
            ValueShape::Text("string", shape::UPSTREAM_NAME),
            "Prefix of the names of its items towards clients; formed like the name of the table, \
             and unique. Rules use the name of the table, whatever the prefix.",
        )
        .default_text("the name of the table"),
    ];
    keys.extend(process());
    keys.extend(network());
    keys
}

fn process() -> Vec<KeySpec> {
    let any = || ValueShape::Text("string", shape::ANYTHING);
    vec![
        KeySpec::new(
            "args",
            ValueShape::list(any()),
            "The arguments of `command`, one string each.",
        )
        .default(json!([]))
        .example("args = [\"-y\", \"@modelcontextprotocol/server-everything\"]"),
        KeySpec::new(
            "env",
            ValueShape::map(shape::VARIABLE_NAME, ValueShape::Secret(shape::ANYTHING)),
            "Environment variables to set for `command`. Each value is a secret: a string, or one \
             of `{ env = \"VAR\" }`, `{ file = \"path\" }`, `{ command = [\"…\"] }`.",
        )
        .default(json!({}))
        .example("env = { LOG_LEVEL = \"info\", API_KEY = { env = \"EVERYTHING_KEY\" } }"),
        KeySpec::new(
            "pass_env",
            ValueShape::list(ValueShape::Text("name of a variable", shape::VARIABLE_NAME)),
            "Variables of Weir's own environment to pass on to `command`. Without this key a \
             program gets `PATH`, `HOME`, `LANG`, `TMPDIR`, `USER`, `SHELL` and `TERM`, and no \
             others.",
        )
        .default(json!([]))
        .example("pass_env = [\"HTTPS_PROXY\"]"),
        KeySpec::new(
            "cwd",
            ValueShape::Text("path", shape::NOT_EMPTY),
            "The working directory of `command`. A relative path starts from the folder of the \
             file that contains it.",
        )
        .default_text("the working directory of Weir"),
    ]
}

fn network() -> Vec<KeySpec> {
    vec![
        KeySpec::new(
            "headers",
            ValueShape::map(
                shape::header_name(&OWN_HEADERS),
                ValueShape::Secret(shape::HEADER_VALUE),
            ),
            "Headers to send with every request to `url`. Each value is a secret, as in `env`. \
             Headers of the protocol itself, such as `Host`, `Content-Type` and all those that \
             begin with `Mcp-`, cannot be set.",
        )
        .default(json!({}))
        .example("headers = { X-Team = { file = \"secrets/team\" } }"),
        KeySpec::new(
            "auth",
            ValueShape::Table { keys: credentials(), rules: credentials_rules() },
            "Credentials of Weir for the server at `url`: an `Authorization` header, made from the \
             following keys. Not allowed together with an `Authorization` in `headers`.",
        )
        .example(
            "auth = { type = \"bearer\", token = { command = [\"gh\", \"auth\", \"token\"] } }",
        ),
        KeySpec::new(
            "transport",
            ValueShape::choice(&TRANSPORTS),
            "Transport to the server at `url`: `http` is Streamable HTTP, `sse` the older HTTP+SSE \
             transport of 2024-11-05, which works with `era` `auto` or `legacy` only. `auto` tries \
             the first, then the second.",
        )
        .default(word(&TRANSPORTS, &None)),
    ]
}

fn credentials() -> Vec<KeySpec> {
    vec![
        KeySpec::new(
            "type",
            ValueShape::choice(&SCHEMES),
            "`bearer` sends `token`, `basic` sends `user` and `password`, `none` sends nothing.",
        )
        .required(),
        KeySpec::new(
            "token",
            ValueShape::Secret(shape::TOKEN),
            "The token alone, without the word Bearer; a secret. Required for `type = \"bearer\"`, \
             and only allowed there.",
        ),
        KeySpec::new(
            "user",
            ValueShape::Text("string", shape::USER),
            "The user name, without a colon. Required for `type = \"basic\"`, and only allowed \
             there.",
        ),
        KeySpec::new(
            "password",
            ValueShape::Secret(shape::PASSWORD),
            "The password; a secret. Required for `type = \"basic\"`, and only allowed there.",
        ),
    ]
}

/// Keys of a secret's source; exactly one of them is set.
pub(super) fn secret() -> Vec<KeySpec> {
    vec![
        KeySpec::new(
            "env",
            ValueShape::Text("name of a variable", shape::VARIABLE_NAME),
            "The environment variable of the Weir process that contains the secret. It must be \
             set.",
        )
        .example("token = { env = \"GITHUB_TOKEN\" }"),
        KeySpec::new(
            "file",
            ValueShape::Text("path", shape::NOT_EMPTY),
            "A file that contains the secret and nothing else; one newline at its end is removed. \
             At most 64 KiB. A relative path starts from the folder of the file that contains it; \
             a file that other users on the machine can read is refused. A file that is not owned \
             by Weir's user may be readable by its group.",
        )
        .example("token = { file = \"secrets/github-token\" }"),
        KeySpec::new(
            "command",
            ValueShape::List {
                of: Box::new(ValueShape::Text("string", shape::ANYTHING)),
                count: (1, None),
            },
            "A program and its arguments, whose standard output is the secret; one newline at its \
             end is removed. It is started without a shell, may run for at most 30 s, and is not \
             started by `weir check --offline`.",
        )
        .example("token = { command = [\"op\", \"read\", \"op://vault/github/token\"] }"),
    ]
}

// === Exports ===

fn export_keys() -> Vec<KeySpec> {
    let descriptions = [
        "The prompts that Weir exports from this upstream, before the rules of roles apply.",
        "The tools that Weir exports from this upstream, before the rules of roles apply.",
        "The resources and resource templates that Weir exports from this upstream, before the \
         rules of roles apply.",
    ];
    let pattern = || ValueShape::list(ValueShape::Text("pattern", shape::ITEM_PATTERN));
    let kind = |(kind, description)| {
        let allow = match kind {
            "resources" => "Patterns of URIs that are exported; `*` matches any run of characters.",
            _ => "Patterns of original names that are exported; `*` matches any run of characters.",
        };
        let allow = KeySpec::new("allow", pattern(), allow).default(json!(["*"]));
        let deny =
            "Patterns of items that are not exported although `allow` matches them: deny wins.";
        let deny = KeySpec::new("deny", pattern(), deny).default(json!([]));
        KeySpec::new(kind, ValueShape::table(vec![allow, deny]), description)
    };
    let mut keys: Vec<_> = KINDS.into_iter().zip(descriptions).map(kind).collect();
    keys.push(
        KeySpec::new(
            "rename",
            ValueShape::map(shape::RENAMED, ValueShape::Text("string", shape::PLAIN_NAME)),
            "New names for items: `prompts/<original name>` or `tools/<original name>`, and the \
             new name, 1 to 64 of A-Z, a-z, 0-9, `_`, `.` and `-`. The prefix is added to the new \
             name; rules still use the original name.",
        )
        .default(json!({}))
        .example("rename = { \"prompts/simple-prompt\" = \"hello\", \"tools/echo\" = \"say\" }"),
    );
    keys
}

// === Constraints between keys ===

fn rules() -> Value {
    let any = |keys: &[&str]| -> Vec<Value> {
        keys.iter().map(|key| json!({ "required": [key] })).collect()
    };
    let contains_any = |table: &str, keys: &[&str]| {
        json!({
            "required": [table],
            "properties": { table: { "anyOf": any(keys) } },
        })
    };
    let mut without_effect = any(&NOT_FOR_A_LIBRARY);
    without_effect.push(contains_any("timeouts", &TIMEOUTS_NOT_FOR_A_LIBRARY));
    without_effect.push(contains_any("limits", &LIMITS_NOT_FOR_A_LIBRARY));
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
    let from_variable = json!({ "type": "string", "pattern": shape::VARIABLE });
    json!({ "anyOf": [
        with("none", &[], &["token", "user", "password"]),
        with("bearer", &["token"], &["user", "password"]),
        with("basic", &["user", "password"], &["token"]),
        { "properties": { "type": from_variable } },
    ] })
}
