//! Keys of `[audit]` and `[state]`.

use super::KeySpec;
use super::shape::{ValueShape, size, word};
use crate::config::audit::{ARGUMENTS, ON_ERROR, ROTATE_KEEP};
use crate::config::{AuditConfig, StateConfig};

pub(super) fn audit() -> KeySpec {
    let default = AuditConfig::default();
    let rotate = vec![
        KeySpec::new(
            "size",
            ValueShape::Size,
            "Size at which a file is rotated and a new one begins; at least `64KiB`.",
        )
        .default(size(default.rotate_size)),
        KeySpec::new(
            "keep",
            ValueShape::Count(ROTATE_KEEP),
            "Number of rotated files that are kept, as `audit.jsonl.1` (the newest) and so on.",
        )
        .default(default.rotate_keep),
    ];
    let keys = vec![
        KeySpec::new(
            "enabled",
            ValueShape::Boolean,
            "With `true` requests are recorded: one line of JSON for each, including refused ones. \
             `weir stdio` records only if this is set to `true`.",
        )
        .default_text(
            "true, unless access is anonymous, no client is defined and the address is a loopback \
             address",
        )
        .example("enabled = true"),
        KeySpec::new(
            "path",
            ValueShape::text(),
            "The file, relative to `dir` under `[state]`; `-` is standard output, but not for \
             `weir stdio`. It is readable by its owner only. It is a regular file, or a character \
             device such as `/dev/null`, or `/dev/stdout` or `/dev/stderr`; a named pipe is \
             refused. Each process has a file of its own: while one writes to `audit.jsonl`, \
             another one uses `audit-2.jsonl`, and so on.",
        )
        .default(default.path.display().to_string())
        .example("path = \"/var/log/weir/audit.jsonl\""),
        KeySpec::new(
            "arguments",
            ValueShape::choice(&ARGUMENTS),
            "The part of a request's arguments that a line contains: nothing, their names, the \
             SHA-256 of their text as it was sent, or the text up to 16 KiB. A hash does not \
             protect values that can be guessed; arguments in full may contain secrets.",
        )
        .default(word(&ARGUMENTS, &default.arguments)),
        KeySpec::new(
            "chain",
            ValueShape::Boolean,
            "With `true` each line contains the hash of the line before, so that `weir audit \
             verify` finds changes.",
        )
        .default(default.chain),
        KeySpec::new("rotate", ValueShape::table(rotate), "Rotation of the file."),
        KeySpec::new(
            "on_error",
            ValueShape::choice(&ON_ERROR),
            "Handling of requests that cannot be recorded, for example because the disk is full: \
             `continue` serves and counts them; `refuse` refuses them with error 5031, and writes \
             a line before each call goes to its upstream, so that nothing is executed without a \
             record.",
        )
        .default(word(&ON_ERROR, &default.on_error)),
    ];
    KeySpec::new(
        "audit",
        ValueShape::table(keys),
        "The audit log: who did what, when, and with which result.",
    )
}

pub(super) fn state() -> KeySpec {
    let dir = KeySpec::new(
        "dir",
        ValueShape::text(),
        "The folder for the files that Weir writes. It is created, for its owner only, when the \
         first file is written.",
    )
    .default_text("`$XDG_STATE_HOME/weir`, or `~/.local/state/weir`")
    .example("dir = \"/var/lib/weir\"");
    let catalog = KeySpec::new(
        "catalog",
        ValueShape::Boolean,
        "With `true` the last lists of each upstream are stored in the folder `catalog` there, for \
         the owner only, and served after the next start until the upstream has been listed. The \
         lists of a `prompts_dir` are not stored, because it is a folder already.",
    )
    .default(StateConfig::default().catalog);
    KeySpec::new("state", ValueShape::table(vec![dir, catalog]), "The files that Weir writes.")
}
