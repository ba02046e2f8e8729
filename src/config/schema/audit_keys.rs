//! The keys of `[audit]` and `[state]`.

use super::Key;
use super::keys::word;
use super::shape::{Shape, size};
use crate::config::audit::{ARGUMENTS, ON_ERROR, ROTATE_KEEP};
use crate::config::{Audit, State};

pub(super) fn audit() -> Key {
    let default = Audit::default();
    let rotate = vec![
        Key::new("size", Shape::Size, "From which size on a file is put aside, and a new one begun; at least `64KiB`.")
            .or(size(default.rotate_size)),
        Key::new(
            "keep",
            Shape::Count(ROTATE_KEEP),
            "How many files are kept that were put aside, as `audit.jsonl.1` (the newest) and so on.",
        )
        .or(default.rotate_keep),
    ];
    let keys = vec![
        Key::new(
            "enabled",
            Shape::Boolean,
            "Whether requests are recorded: a line of JSON for each, refusals included. `weir stdio` records only \
             where this is `true`.",
        )
        .or_else("true, unless everybody is anonymous on a loopback address")
        .example("enabled = true"),
        Key::new(
            "path",
            Shape::text(),
            "The file, relative to `dir` under `[state]`; `-` is standard output, but not for `weir stdio`. It is \
             readable for its owner only. It is a regular file, or a character device such as `/dev/null`, or `/dev/stdout` or \
             `/dev/stderr`; a named pipe is refused. A process has its file for itself: while one writes to `audit.jsonl`, \
             another one takes `audit-2.jsonl`, and so on.",
        )
        .or(default.path.display().to_string())
        .example("path = \"/var/log/weir/audit.jsonl\""),
        Key::new(
            "arguments",
            Shape::choice(&ARGUMENTS),
            "What a line tells of a request's arguments: nothing, their names, the SHA-256 of their text as it was \
             sent, or all of it up to 16 KiB. A hash hides nothing that can be guessed; arguments in full may hold \
             secrets.",
        )
        .or(word(&ARGUMENTS, &default.arguments)),
        Key::new(
            "chain",
            Shape::Boolean,
            "Whether each line carries the hash of the one before, so that `weir audit verify` finds what was changed.",
        )
        .or(default.chain),
        Key::new("rotate", Shape::table(rotate), "When a file is put aside, and how many are kept."),
        Key::new(
            "on_error",
            Shape::choice(&ON_ERROR),
            "What becomes of requests that cannot be recorded, because the disk is full, for instance: `continue` \
             serves and counts them; `refuse` refuses them with error 5031, and writes a line before each call goes \
             to its upstream, so that nothing is done of which there is no record.",
        )
        .or(word(&ON_ERROR, &default.on_error)),
    ];
    Key::new("audit", Shape::table(keys), "Who did what, when, and what came of it.")
}

pub(super) fn state() -> Key {
    let dir = Key::new(
        "dir",
        Shape::text(),
        "The folder in which Weir keeps what it writes. It is made, for its owner only, when something is.",
    )
    .or_else("`$XDG_STATE_HOME/weir`, or `~/.local/state/weir`")
    .example("dir = \"/var/lib/weir\"");
    let catalog = Key::new(
        "catalog",
        Shape::Boolean,
        "Whether what each upstream listed last is kept in the folder `catalog` there, for the owner only, and shown \
         after the next start until the upstream has been listed. Not of a `prompts_dir`, which is a folder already.",
    )
    .or(State::default().catalog);
    Key::new("state", Shape::table(vec![dir, catalog]), "Where Weir keeps what it writes.")
}
