//! Targets that parse or write text without a gateway.

use std::collections::HashSet;
use std::path::PathBuf;

use bytes::Bytes;
use weir_access::catalog::{
    Cursor,
    template::{MAX_STEPS, matches},
};
use weir_access::pins::Digest;
use weir_base::json::{self, Object};
use weir_base::text::line_codec::{DecodedLine, LineDecoder};
use weir_base::text::sse::{self, Event, SseDecoder};
use weir_config::{Config, Options};
use weir_mcp::definition::item::Item;
use weir_mcp::definition::param_headers::{ParamHeaders, decode, header_value};
use weir_mcp::jsonrpc::{Id, Message, code};
use weir_mcp::kind::Kind;

use super::reference;

/// D-F1: the parser of messages agrees with the reference parser.
pub(super) fn jsonrpc(bytes: &[u8]) {
    let parsed = Message::parse(Bytes::copy_from_slice(bytes));
    let text = std::str::from_utf8(bytes).ok();
    let read = text.and_then(reference::object);
    if let Err(invalid) = &parsed
        && invalid.code == code::PARSE_ERROR
    {
        // A text that is too deep may be reported as invalid, because it is not parsed to its end.
        let well_formed = read.as_ref().is_some_and(|(_, depth)| *depth <= json::MAX_DEPTH);
        assert!(!well_formed, "valid JSON was refused: {text:?}");
    }
    let Some((members, depth)) = read else {
        assert!(parsed.is_err(), "not a JSON object: {text:?}");
        return;
    };
    let get = |key: &str| members.iter().find(|(name, _)| name == key).map(|(_, raw)| &**raw);
    let keys: HashSet<_> = members.iter().map(|(key, _)| key).collect();
    let is_valid = depth <= json::MAX_DEPTH
        && keys.len() == members.len()
        && members.len() <= json::MAX_MEMBERS
        && get("jsonrpc") == Some("\"2.0\"");
    let id = get("id").and_then(|raw| Id::parse(raw.to_owned().into()));
    let method = get("method").and_then(reference::string);
    let params = get("params").map(reference::object);
    match parsed {
        Ok(message) => {
            assert!(is_valid, "accepted: {text:?}");
            match message {
                Message::Request(it) => {
                    assert_eq!((Some(&*it.method), Some(it.id)), (method.as_deref(), id));
                    check_member(&it.params, "_meta");
                    assert_eq!(members_of(&it.params), params.flatten().unwrap_or_default().0);
                }
                Message::Notification(it) => {
                    assert_eq!((Some(&*it.method), None), (method.as_deref(), get("id")));
                    assert_eq!(members_of(&it.params), params.flatten().unwrap_or_default().0);
                }
                Message::Response(it) => {
                    assert_eq!((get("method"), it.id), (None, id));
                    assert!(get("result").is_some() != get("error").is_some(), "{text:?}");
                    let result = get("result").map(|raw| Object::parse(raw.to_owned()));
                    let result = result.and_then(Result::ok).map(|alone| members_of(&alone));
                    assert_eq!(it.result.map(|read| members_of(&read)), result);
                }
            }
        }
        Err(invalid) => {
            let params_are_valid = params.is_none_or(|params| {
                params.is_some_and(|(members, _)| {
                    let keys: HashSet<_> = members.iter().map(|(key, _)| key).collect();
                    keys.len() == members.len() && members.len() <= json::MAX_MEMBERS
                })
            });
            let is_request = is_valid && method.is_some() && params_are_valid && id.is_some();
            assert!(!is_request, "refused ({invalid}): {text:?}");
        }
    }
}

/// Checks that a member that is parsed with its object equals the member parsed alone.
fn check_member(object: &Object, member: &str) {
    let alone = object.get_bytes(member).and_then(|raw| Object::parse(raw).ok());
    let read = object.get_object(member);
    assert_eq!(read.map(|it| members_of(&it)), alone.map(|it| members_of(&it)));
}

fn members_of(object: &Object) -> Vec<(String, String)> {
    let member = |key: &str| (key.to_owned(), object.get(key).unwrap_or_default().to_owned());
    object.keys().map(member).collect()
}

/// D-F2: the lines do not depend on the chunks, and at most one line is buffered.
pub(super) fn lines(bytes: &[u8]) {
    const LIMIT: usize = 64;
    let Some((seed, text)) = bytes.split_first() else { return };
    let read = |chunk: &mut dyn FnMut(usize) -> usize| {
        let (mut lines, mut found, mut at) = (LineDecoder::new(LIMIT), Vec::new(), 0);
        while at < text.len() {
            let end = (at + chunk(at).max(1)).min(text.len());
            lines.buffer().extend_from_slice(&text[at..end]);
            while let Some(line) = lines.next_line() {
                found.push(match line {
                    DecodedLine::Whole(line) => {
                        assert!(line.len() <= LIMIT && !line.contains(&b'\n'), "{line:?}");
                        (line, true)
                    }
                    DecodedLine::TooLong(head) | DecodedLine::BudgetExhausted(head) => {
                        (head.slice(..head.len().min(LIMIT)), false)
                    }
                });
            }
            // A carriage return may or may not be a part of a line that is too long.
            assert!(lines.buffer().len() <= LIMIT + 1, "buffered: {}", lines.buffer().len());
            at = end;
        }
        found
    };
    let whole = read(&mut |_| text.len());
    assert_eq!(read(&mut |_| 1), whole, "byte by byte");
    assert_eq!(read(&mut chunk_sizes(*seed)), whole, "in chunks");
}

/// Chunk sizes that are derived from a seed.
fn chunk_sizes(seed: u8) -> impl FnMut(usize) -> usize {
    move |at| 1 + (usize::from(seed) * 31 + at * 17) % 23
}

/// D-F3: the events do not depend on the chunks, and conform to the HTML standard.
pub(super) fn events(bytes: &[u8]) {
    let Some((seed, text)) = bytes.split_first() else { return };
    let read = |mut reader: SseDecoder, chunk: &mut dyn FnMut(usize) -> usize| {
        let (mut found, mut at) = (Vec::new(), 0);
        while at < text.len() {
            let end = (at + chunk(at).max(1)).min(text.len());
            found.extend(reader.feed(&text[at..end]).expect("within the limit"));
            at = end;
        }
        found
    };
    let unlimited = || SseDecoder::new(1 << 24);
    let whole = read(unlimited(), &mut |_| text.len());
    assert_eq!(read(unlimited(), &mut |_| 1), whole, "byte by byte");
    assert_eq!(read(unlimited(), &mut chunk_sizes(*seed)), whole, "in chunks");
    assert_eq!(whole.iter().map(plain).collect::<Vec<_>>(), standard(text), "by the standard");
    let limited = || SseDecoder::truncating(40);
    let limited_events = read(limited(), &mut |_| text.len());
    let in_pieces = read(limited(), &mut |_| 1);
    assert_eq!(limited_events.len(), in_pieces.len(), "truncated events");
    assert!(limited_events.iter().all(|event| event.data.len() <= 256), "{limited_events:?}");
}

fn plain(event: &Event) -> (String, Vec<u8>) {
    (event.name.clone(), event.data.to_vec())
}

/// Reference parser for event streams by the HTML standard, 9.2.6.
fn standard(text: &[u8]) -> Vec<(String, Vec<u8>)> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let (mut events, mut name, mut data) = (Vec::new(), String::new(), None::<Vec<u8>>);
    let mut rest = text;
    while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
        let line = &rest[..end];
        let skip = if rest[end..].starts_with(b"\r\n") { 2 } else { 1 };
        rest = &rest[end + skip..];
        if line.is_empty() {
            let name = std::mem::take(&mut name);
            events.extend(data.take().map(|data| (name, data)));
            continue;
        }
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"event" => name = String::from_utf8_lossy(value).into_owned(),
            b"data" => {
                let data = match &mut data {
                    Some(data) => {
                        data.push(b'\n');
                        data
                    }
                    None => data.insert(Vec::new()),
                };
                data.extend_from_slice(value);
            }
            _ => {}
        }
    }
    events
}

/// D-F4: a decoded header value is encoded to a value that decodes to the same text.
pub(super) fn header_decoded(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Some(value) = decode(text) else { return };
    let again = header_value(&value);
    let again = again.to_str().expect("printable");
    assert_eq!(decode(again).as_deref(), Some(&*value), "{text:?}");
}

/// D-F8: any text is encoded to one valid header line, and decodes to the same text.
pub(super) fn header_written(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let header = header_value(&text);
    assert!(header.as_bytes().iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t')), "{header:?}");
    let back = decode(header.to_str().expect("printable")).map(|text| text.into_owned());
    assert_eq!(back.as_deref(), Some(&*text));
}

/// Secret that no error about a configuration may contain.
const CANARY: &str = "canary-8642-tweet";

/// D-F5: a configuration is accepted or refused, and no error contains its secrets.
pub(super) fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // Files that the configuration names are looked up in this empty folder.
    let folder = folder();
    let text = text.replace("include", "xnclude");
    let secret = format!(
        "[upstreams.zz]\nurl = \"https://zz.test/\"\nauth = {{ type = \"bearer\", token = \"{CANARY}\" }}\n"
    );
    for text in [text.clone(), format!("{text}\n{secret}"), format!("{secret}{text}")] {
        let path = folder.join("weir.toml");
        std::fs::write(&path, &text).expect("a folder to write to");
        match Config::check(&path, &Options::default()) {
            Ok(warnings) => {
                let output = format!("{warnings:?}");
                assert!(!output.contains(CANARY), "{output}");
            }
            Err(report) => {
                let output = format!("{report}{}", report.render(false));
                assert!(!output.contains(CANARY), "{output}");
            }
        }
    }
}

fn folder() -> PathBuf {
    thread_local! {
        static FOLDER: PathBuf = {
            let name = format!("weir-fuzz-{}-{:?}", std::process::id(), std::thread::current().id());
            let folder = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&folder).expect("a folder to write to");
            folder
        };
    }
    FOLDER.with(Clone::clone)
}

/// D-F6: a cursor that parses is one that Weir writes.
pub(super) fn cursor(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let read: Vec<_> = Kind::ALL
        .into_iter()
        .filter_map(|kind| Some((kind, Cursor::parse(text, kind).ok()?)))
        .collect();
    assert!(read.len() <= 1, "a cursor of two kinds: {text:?}");
    for (kind, cursor) in read {
        assert_eq!(cursor.encode(kind), text);
    }
}

/// D-F7: each message is written as exactly one event.
pub(super) fn event_written(bytes: &[u8]) {
    let Ok(object) = Object::parse(Bytes::copy_from_slice(bytes)) else { return };
    let message = json::on_one_line(object.to_bytes());
    let written = sse::write_message(&message);
    let events = SseDecoder::new(1 << 24).feed(&written).expect("within the limit");
    let [event] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&*event.name, &event.data), ("message", &message));
    let back = Object::parse(event.data.clone()).expect("an object");
    assert!(back.keys().eq(object.keys()), "{back:?}");
}

/// D-F9: the checks of a definition do not depend on the order of its members.
pub(super) fn definition(bytes: &[u8]) {
    for kind in Kind::ALL {
        let Ok(item) = Item::parse(kind, Bytes::copy_from_slice(bytes)) else { continue };
        let keys: Vec<String> = item.definition.keys().map(str::to_owned).collect();
        let mut reversed = Object::new();
        for key in keys.iter().rev() {
            reversed.set(key.clone(), item.definition.get_bytes(key).expect("a member"));
        }
        let again = Item::parse(kind, reversed.to_bytes()).expect("the same members");
        assert_eq!(
            (&again.key, again.defect, again.needs_task),
            (&item.key, item.defect, item.needs_task)
        );
        let header_marks = |item: &Item| ParamHeaders::read(&item.definition);
        assert_eq!(header_marks(&again), header_marks(&item));
        assert_eq!(Digest::of(&reversed.to_bytes()), Digest::of(&item.definition.to_bytes()));
    }
}

/// D-F10: the matcher of templates agrees with a reference matcher, within its limit of steps.
pub(super) fn template(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Some((template, uri)) = text.split_once('\n') else { return };
    let mut steps = MAX_STEPS;
    let found = matches(template, uri, &mut steps);
    if steps == 0 {
        assert!(!found, "out of steps");
        return;
    }
    let expected =
        tokens_of(template).is_some_and(|tokens| matches_tokens(&tokens, uri.as_bytes()));
    assert_eq!(found, expected, "{template:?} and {uri:?}");
}

enum Token {
    Byte(u8),
    Segment,
    Any,
}

/// Splits a template into tokens; `None` if it is invalid.
fn tokens_of(template: &str) -> Option<Vec<Token>> {
    let (mut tokens, mut rest) = (Vec::new(), template);
    while let Some(first) = rest.chars().next() {
        if first != '{' {
            let mut bytes = [0; 4];
            tokens.extend(first.encode_utf8(&mut bytes).bytes().map(Token::Byte));
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let end = rest.find('}')?;
        tokens.push(match rest[1..end].chars().next()? {
            '=' | ',' | '!' | '@' | '|' => return None,
            '+' | '#' | '.' | '/' | ';' | '?' | '&' => Token::Any,
            _ => Token::Segment,
        });
        rest = &rest[end + 1..];
    }
    Some(tokens)
}

/// Whether the tokens match the text, by dynamic programming over the positions of the text.
fn matches_tokens(tokens: &[Token], text: &[u8]) -> bool {
    let mut fits = vec![false; text.len() + 1];
    fits[0] = true;
    for token in tokens {
        let mut next = vec![false; text.len() + 1];
        for at in (0..=text.len()).filter(|at| fits[*at]) {
            match token {
                Token::Byte(byte) => {
                    if text.get(at) == Some(byte) {
                        next[at + 1] = true;
                    }
                }
                Token::Any => next[at..].fill(true),
                Token::Segment => {
                    let run = text[at..].iter().take_while(|byte| **byte != b'/').count();
                    next[at + 1..at + run + 1].fill(true);
                }
            }
        }
        fits = next;
    }
    fits[text.len()]
}

/// D-F11: a text in the audit log is one line of JSON, and decodes to the same text.
pub(super) fn audit_text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let written = weir_record::audit::quoted(&text);
    assert!(!written.chars().any(char::is_control), "{written:?}");
    assert_eq!(written.lines().count(), 1, "{written:?}");
    let back = json::decode_string(&written).expect("JSON");
    let second = reference::string(&written).expect("JSON");
    assert_eq!(back, second);
    match back.split_once("… (").filter(|_| text.len() > 1_024) {
        Some((head, _)) => assert!(text.starts_with(head), "{written}"),
        None => assert_eq!(back, text),
    }
}
