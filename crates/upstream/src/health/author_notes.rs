//! Mistakes of a server that its author can correct: how often each kind was seen, and the first
//! instance of it.
//!
//! Invariants: a message without a mistake takes neither the lock nor memory, and a list takes the
//! lock once for each kind. A kind has one count, and one text of at most [`MAX_STORED_BYTES`] for
//! each list that it is about. A text to show has no secret of the upstream, no control character
//! and at most [`MAX_SHOWN_CHARS`] characters of the server. Nothing of a tool's result is stored,
//! because it may belong to a user.

use std::collections::BTreeMap;
use std::fmt;

use strum::IntoStaticStr;

use weir_base::json::Object;
use weir_base::secrets::secret_search::SecretPatterns;
use weir_base::tasks::sync::Mutex;
use weir_base::text::invisible_chars::make_visible;
use weir_base::text::terminal_styles::without_styles;
use weir_mcp::call::has_content;
use weir_mcp::definition::item::Item;
use weir_mcp::kind::Kind;

/// Counts of the mistakes of one server since Weir started; for lists, those of the last ones.
#[derive(Debug, Default)]
pub(crate) struct AuthorNotes {
    /// By kind, and by the kind of the list if it is about a list.
    found: Mutex<BTreeMap<(NoteKind, Option<Kind>), Occurrences>>,
}

impl AuthorNotes {
    /// Counts a mistake in a message.
    pub(crate) fn add(&self, kind: NoteKind, text: &[u8]) {
        self.found.lock().entry((kind, None)).or_default().add(text);
    }

    /// Counts the result of a tool if it lacks `content`. One that only names a task or requests
    /// input has none.
    pub(crate) fn check_result(&self, tool: &str, result: &Object) {
        if has_content(result) {
            return;
        }
        let is_complete = matches!(result.get("resultType"), None | Some("\"complete\""));
        if is_complete && !result.has("task") {
            self.add(NoteKind::ResultContent, tool.as_bytes());
        }
    }

    /// Replaces the mistakes in the list of a kind, which has been read again.
    pub(crate) fn list_read(&self, list: Kind, duplicates: Occurrences, items: &[Item]) {
        self.replace(NoteKind::DuplicateItem, list, duplicates);
        let mut task_only = Occurrences::default();
        let items = items.iter().filter(|item| item.needs_task);
        items.for_each(|item| task_only.add(item.key.as_bytes()));
        self.replace(NoteKind::TaskOnly, list, task_only);
    }

    /// Replaces the mistakes of a kind in the list of a kind.
    pub(crate) fn replace(&self, kind: NoteKind, list: Kind, found: Occurrences) {
        let (key, mut all) = ((kind, Some(list)), self.found.lock());
        match found.count {
            0 => _ = all.remove(&key),
            _ => _ = all.insert(key, found),
        }
    }

    /// Returns the notes in the order of their kinds, with `***` for each of these secrets.
    pub(crate) fn read(&self, secrets: &SecretPatterns) -> Vec<AuthorNote> {
        let found = self.found.lock().clone();
        if found.is_empty() {
            return Vec::new();
        }
        let mut notes: Vec<AuthorNote> = Vec::new();
        for ((kind, list), Occurrences { count, first }) in found {
            match notes.last_mut().filter(|note| note.kind == kind) {
                Some(note) => note.count += count,
                None => {
                    let first = shown(&secrets.redact(&without_styles(&first)));
                    notes.push(AuthorNote { kind, list, count, first });
                }
            }
        }
        notes
    }
}

// === AuthorNote ===

/// Mistake of a server, for its author.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorNote {
    /// Kind of the mistake.
    pub kind: NoteKind,
    /// Kind of the list that the first instance is in.
    list: Option<Kind>,
    /// Number of instances.
    pub count: u64,
    /// Text of the first one: a line, an id, a result of the handshake, or the name of an item.
    pub first: String,
}

/// Sentence that says what the server did, how often, the first instance, and what its author has
/// to do.
impl fmt::Display for AuthorNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, list, count, first } = self;
        let is_one = *count == 1;
        let of = |one: &str, many: &str| match is_one {
            true => one.to_owned(),
            false => format!("{count} {many}"),
        };
        let lead = if is_one { "" } else { "first: " };
        match kind {
            NoteKind::ProtocolVersion => write!(
                f,
                "it answered `initialize` {} without `protocolVersion` ({lead}`{first}`): return \
                 the revision of the request, or the newest one that the server speaks",
                of("once", "times"),
            ),
            NoteKind::StdoutLine => write!(
                f,
                "it wrote {} to standard output that {} no MCP message ({lead}`{first}`): write \
                 such lines to standard error",
                of("1 line", "lines"),
                if is_one { "is" } else { "are" },
            ),
            NoteKind::UnknownId => write!(
                f,
                "it sent {} with an id that no request has ({lead}`{first}`): return the id of \
                 each request as it came, a number as a number",
                of("1 response", "responses"),
            ),
            NoteKind::DuplicateItem => write!(
                f,
                "it lists {} under the name or URI of one before ({lead}{} \"{first}\"), and \
                 clients get only the one before: give each item its own",
                of("1 item", "items"),
                list.map(|list| list.to_string()).unwrap_or_default(),
            ),
            NoteKind::InputSchema => write!(
                f,
                "it lists {} without a valid `inputSchema` ({lead}\"{first}\"), which Weir \
                 repairs: give each tool one, {{\"type\":\"object\"}} if it takes no arguments",
                of("1 tool", "tools"),
            ),
            NoteKind::TaskOnly => write!(
                f,
                "it lists {} that can be called only as a task ({lead}\"{first}\"), which few \
                 clients do: set `taskSupport` to \"optional\", and answer calls without a task",
                of("1 tool", "tools"),
            ),
            NoteKind::ResultContent => write!(
                f,
                "it sent {} without `content` ({lead}of \"{first}\"), which clients may reject: \
                 return `content` with each result, [] if there is nothing to say",
                of("1 result of a tool", "results of tools"),
            ),
        }
    }
}

/// Kind of a mistake, in the order in which they are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum NoteKind {
    /// The result of `initialize` names no revision.
    ProtocolVersion,
    /// A line on standard output is no MCP message.
    StdoutLine,
    /// A response has an id that no request had.
    UnknownId,
    /// An item has the name or URI of one before it in its list.
    DuplicateItem,
    /// The `inputSchema` of a tool is missing, or was repaired.
    InputSchema,
    /// A tool can be called only as a task.
    TaskOnly,
    /// The result of a tool has no `content`.
    ResultContent,
}

impl NoteKind {
    /// Name of the kind in JSON.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

// === Occurrences ===

/// Number of instances of a mistake, with the text of the first one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Occurrences {
    count: u64,
    first: String,
}

impl Occurrences {
    /// Counts an instance.
    pub fn add(&mut self, text: &[u8]) {
        if self.count == 0 {
            let text = text.trim_ascii_start();
            let stored = &text[..text.len().min(MAX_STORED_BYTES)];
            self.first = String::from_utf8_lossy(stored).into_owned();
        }
        self.count = self.count.saturating_add(1);
    }
}

/// Returns a text of a server as it may be shown.
fn shown(text: &str) -> String {
    let mut rest = text.trim().chars();
    let visible = make_visible(&rest.by_ref().take(MAX_SHOWN_CHARS).collect::<String>());
    if rest.next().is_some() { visible + "…" } else { visible }
}

/// Bytes of a text that are stored: more than are shown, so that a secret at the end of the shown
/// ones is found as a whole.
const MAX_STORED_BYTES: usize = 1_024;
/// Characters of a text that are shown.
const MAX_SHOWN_CHARS: usize = 100;

#[cfg(test)]
mod tests {
    use crate::health::author_notes::*;

    fn texts(notes: &AuthorNotes) -> Vec<String> {
        notes
            .read(&SecretPatterns::default())
            .iter()
            .map(|note| format!("{}: {note}", note.kind.as_str()))
            .collect()
    }

    fn counted(texts: &[&str]) -> Occurrences {
        let mut found = Occurrences::default();
        texts.iter().for_each(|text| found.add(text.as_bytes()));
        found
    }

    #[test]
    fn a_note_says_what_happened_how_often_the_first_instance_and_what_to_do() {
        let notes = AuthorNotes::default();
        assert_eq!(texts(&notes), [""; 0]);
        let add = |text: &str| {
            let kinds = [NoteKind::ResultContent, NoteKind::UnknownId, NoteKind::StdoutLine];
            for kind in kinds.into_iter().chain([NoteKind::ProtocolVersion]) {
                notes.add(kind, text.as_bytes());
            }
        };
        let replace = |names: &[&str]| {
            for kind in [NoteKind::TaskOnly, NoteKind::InputSchema, NoteKind::DuplicateItem] {
                notes.replace(kind, Kind::Tool, counted(names));
            }
        };
        add(" {\"x\":1}\r");
        replace(&["a"]);
        assert_eq!(
            texts(&notes),
            [
                "protocol-version: it answered `initialize` once without `protocolVersion` \
                 (`{\"x\":1}`): return the revision of the request, or the newest one that the \
                 server speaks",
                "stdout-line: it wrote 1 line to standard output that is no MCP message \
                 (`{\"x\":1}`): write such lines to standard error",
                "unknown-id: it sent 1 response with an id that no request has (`{\"x\":1}`): \
                 return the id of each request as it came, a number as a number",
                "duplicate-item: it lists 1 item under the name or URI of one before (tool \
                 \"a\"), and clients get only the one before: give each item its own",
                "input-schema: it lists 1 tool without a valid `inputSchema` (\"a\"), which Weir \
                 repairs: give each tool one, {\"type\":\"object\"} if it takes no arguments",
                "task-only: it lists 1 tool that can be called only as a task (\"a\"), which few \
                 clients do: set `taskSupport` to \"optional\", and answer calls without a task",
                "result-content: it sent 1 result of a tool without `content` (of \
                 \"{\"x\":1}\"), which clients may reject: return `content` with each result, [] \
                 if there is nothing to say",
            ]
        );
        add("second");
        replace(&["b", "c"]);
        notes.replace(NoteKind::DuplicateItem, Kind::Resource, counted(&["a:b"; 3]));
        let counts: Vec<_> = notes
            .read(&SecretPatterns::default())
            .into_iter()
            .map(|it| (it.count, it.first))
            .collect();
        let x = r#"{"x":1}"#;
        let expected = [(2, x), (2, x), (2, x), (5, "b"), (2, "b"), (2, "b"), (2, x)];
        assert_eq!(counts, expected.map(|(count, first)| (count, first.to_owned())));
        let texts = texts(&notes);
        assert!(texts[0].contains("2 times without `protocolVersion` (first: `{"), "{texts:?}");
        assert!(texts[1].contains("2 lines to standard output that are no"), "{texts:?}");
        assert!(texts[3].contains("5 items under the name"), "{texts:?}");
    }

    #[test]
    fn a_list_that_is_read_again_replaces_what_was_found_in_it() {
        let notes = AuthorNotes::default();
        let tool = |name: &str, needs_task| {
            let text = format!("{{\"name\":\"{name}\"}}");
            Item { needs_task, ..Item::parse(Kind::Tool, text.into()).expect("an item") }
        };
        let tools = [tool("a", false), tool("b", true)];
        for _ in 0..3 {
            notes.list_read(Kind::Tool, counted(&["c", "c"]), &tools);
            notes.list_read(Kind::Prompt, counted(&["d"]), &[]);
        }
        let found: Vec<_> = notes
            .read(&SecretPatterns::default())
            .into_iter()
            .map(|it| (it.count, it.first))
            .collect();
        assert_eq!(found, [(3, "d".to_owned()), (1, "b".to_owned())]);
        notes.list_read(Kind::Tool, Occurrences::default(), &tools[..1]);
        notes.list_read(Kind::Prompt, Occurrences::default(), &[]);
        assert_eq!(notes.read(&SecretPatterns::default()), []);
    }

    #[test]
    fn a_note_is_bounded_and_has_neither_secrets_nor_characters_that_a_terminal_executes() {
        let notes = AuthorNotes::default();
        let hostile = "\u{1b}[2J\u{202e}token canary-1 \u{7}".to_owned() + &"é".repeat(1 << 20);
        for _ in 0..1_000 {
            notes.add(NoteKind::StdoutLine, hostile.as_bytes());
        }
        // Secrets across the ends of the shown and of the stored text.
        for (kind, before) in [(NoteKind::UnknownId, 95), (NoteKind::ResultContent, 0)] {
            let long = "x".repeat(before) + &"canary-with-many-letters".repeat(100);
            notes.add(kind, long.as_bytes());
        }
        let stored: usize = notes.found.lock().values().map(|found| found.first.len()).sum();
        assert!(stored <= 3 * 3 * MAX_STORED_BYTES, "{stored}");
        let read = notes.read(&SecretPatterns::new(["canary-1", "canary-with-many-letters"]));
        assert_eq!(read[0].count, 1_000);
        assert!(read[0].first.starts_with("<U+001B>[2J<U+202E>token *** <U+0007>éé"), "{read:?}");
        for note in read {
            let text = note.to_string();
            assert!(!text.contains("canary") && text.chars().count() < 400, "{text}");
            assert!(!text.contains(|c: char| c.is_control() || c == '\u{202e}'), "{text}");
        }
        notes.add(NoteKind::ProtocolVersion, b"\xff\xfe\n");
        assert_eq!(notes.read(&SecretPatterns::default())[0].first, "\u{fffd}\u{fffd}");
    }

    #[test]
    fn only_a_final_result_of_a_tool_needs_content() {
        for (result, is_noted) in [
            ("{}", true),
            (r#"{"content":null}"#, true),
            (r#"{"content":"text"}"#, true),
            (r#"{"structuredContent":{}}"#, true),
            (r#"{"resultType":"complete"}"#, true),
            (r#"{"content":[]}"#, false),
            (r#"{"content":[{"type":"text","text":"x"}],"isError":true}"#, false),
            (r#"{"task":{"taskId":"x"}}"#, false),
            (r#"{"resultType":"task","taskId":"x"}"#, false),
            (r#"{"resultType":"input_required","inputRequests":{}}"#, false),
        ] {
            let notes = AuthorNotes::default();
            notes.check_result("a", &Object::parse(result).expect(result));
            assert_eq!(!notes.read(&SecretPatterns::default()).is_empty(), is_noted, "{result}");
        }
    }
}
