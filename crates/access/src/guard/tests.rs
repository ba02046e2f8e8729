//! Tests of the guard as a whole: definitions, responses, reports.

use bytes::Bytes;
use futures::{StreamExt, stream};
use proptest::prelude::*;

use super::invisible_text::tests::HIDDEN;
use super::redact::tests::pattern;
use super::*;
use weir_base::json::ParseError;
use weir_base::memory::memory_budget::{BufferError, MemoryBudget};
use weir_mcp::call::PayloadBroken;
use weir_mcp::definition::item::ItemDefect;
use weir_mcp::revision::Era;

fn hub() -> UpstreamName {
    "hub".parse().expect("a name")
}

fn guard(rules: GuardRules) -> Guard {
    Guard::new([(hub(), rules)])
}

fn quoted(text: &str) -> String {
    String::from_utf8(json::quote(text).to_vec()).expect("JSON is text")
}

fn watch(rules: GuardRules, method: Method, kind: Kind) -> Option<ResponseInspector> {
    guard(rules).inspector(&hub(), method, kind, "hub__p")
}

/// Returns the outcome for a prompt's result.
fn judged(rules: GuardRules, result: &str) -> Result<(String, Findings), InspectionError> {
    let watch = watch(rules, Method::GetPrompt, Kind::Prompt).expect("an inspector");
    let (text, findings) = judge(&watch, result.to_owned().into())?;
    Ok((String::from_utf8(text.to_vec()).expect("text"), findings))
}

/// Returns what an inspector forwards of a result.
fn judge(watch: &ResponseInspector, text: Bytes) -> Result<(Bytes, Findings), InspectionError> {
    let read = Object::parse_within(text.clone(), usize::MAX);
    let (new, findings) = watch.evaluate(&text, Some(read.as_ref()))?;
    Ok((new.unwrap_or(text), findings))
}

fn hiding(setting: HiddenText) -> GuardRules {
    GuardRules { hidden_text: setting, output: ResultCheck::Off, ..GuardRules::default() }
}

// === Definitions ===

/// A prompt with this text in the n-th of six fields.
fn definition(field: usize, text: &str) -> Item {
    let plain = ["n", "t", "d", "a", "b", "c"].map(str::to_owned);
    let mut fields = plain;
    fields[field].push_str(text);
    let [name, title, description, argument, about, deep] = fields.map(|field| quoted(&field));
    let definition = format!(
        r#"{{"name":{name},"title":{title}, "description":{description},"arguments":[{{"name":{argument},"description":{about}}}],"_meta":{{"x":[{deep},1e400]}}}}"#
    );
    Item::parse(Kind::Prompt, definition.into()).expect("an item")
}

/// Returns the published form of an item.
fn published(setting: HiddenText, item: &Item) -> Item {
    let mut items = [item.clone()];
    let guard = guard(hiding(setting));
    guard.inspect_definitions(&hub(), Kind::Prompt, &mut items);
    // Looking again changes nothing more.
    let once = items.clone();
    guard.inspect_definitions(&hub(), Kind::Prompt, &mut items);
    assert_eq!(items, once);
    let [item] = items;
    item
}

#[test]
fn sixty_four_characters_in_six_fields_of_a_definition() {
    for (letter, field) in HIDDEN.into_iter().flat_map(|it| (0..6).map(move |field| (it, field))) {
        let (item, plain) = (definition(field, &format!("{letter}x")), definition(field, "x"));
        let at = format!("U+{:04X} in field {field}", u32::from(letter));
        for setting in [HiddenText::Pass, HiddenText::Flag] {
            assert_eq!(published(setting, &item), item, "{at}");
        }
        let refused = published(HiddenText::Refuse, &item);
        assert_eq!(refused.defect, Some(ItemDefect::HiddenText), "{at}");
        let [stripped, escaped] =
            [HiddenText::Strip, HiddenText::Escape].map(|setting| published(setting, &item));
        if field == 0 {
            // Its upstream knows it by no other name.
            assert_eq!(
                [stripped.defect, escaped.defect],
                [Some(ItemDefect::HiddenText); 2],
                "{at}"
            );
            continue;
        }
        assert_eq!(stripped.definition.to_bytes(), plain.definition.to_bytes(), "{at}");
        let visible_form = definition(
            field,
            &format!("{}x", weir_base::text::invisible_chars::visible_form(letter)),
        );
        assert_eq!(escaped.definition.to_bytes(), visible_form.definition.to_bytes(), "{at}");
        assert_eq!((stripped.defect, escaped.defect), (None, None), "{at}");
        // And of what is plain every byte stays.
        assert_eq!(published(HiddenText::Refuse, &plain), plain);
    }
}

#[test]
fn names_of_members_never_become_twins() {
    let text = "{\"name\":\"n\",\"_meta\":{\"a\u{200b}b\":1,\"ab\":2}}";
    let item = Item::parse(Kind::Tool, text.into()).expect("an item");
    let stripped = published(HiddenText::Strip, &item);
    let expected = r#"{"name":"n","_meta":{"a<U+200B>b":1,"ab":2}}"#;
    assert_eq!(stripped.definition.to_bytes(), expected);
}

#[test]
fn instructions_are_looked_at_too() {
    let introduced = |setting| {
        let text = guard(hiding(setting)).inspect_instructions(&hub(), Some("a\u{202e}b".into()));
        text.map(|text| text.to_string())
    };
    assert_eq!(introduced(HiddenText::Pass).as_deref(), Some("a\u{202e}b"));
    assert_eq!(introduced(HiddenText::Flag).as_deref(), Some("a\u{202e}b"));
    assert_eq!(introduced(HiddenText::Strip).as_deref(), Some("ab"));
    assert_eq!(introduced(HiddenText::Escape).as_deref(), Some("a<U+202E>b"));
    assert_eq!(introduced(HiddenText::Refuse), None);
}

#[test]
fn secret_in_any_field_of_a_definition_is_redacted_or_the_item_is_left_out() {
    let rules =
        GuardRules { redact: vec![pattern("key", "AKIA[A-Z]")], ..hiding(HiddenText::Strip) };
    let published = |item: &Item| {
        let mut items = [item.clone()];
        guard(rules.clone()).inspect_definitions(&hub(), Kind::Prompt, &mut items);
        let [item] = items;
        item
    };
    for field in 0..6 {
        // Invisible characters do not hide it either.
        let item = published(&definition(field, "-AK\u{200b}IAB-"));
        match field {
            0 => {
                assert_eq!(item.defect, Some(ItemDefect::Redacted));
                assert_eq!(&*item.key, "n-[redacted:key]-");
            }
            // The name of an argument.
            3 => assert_eq!((item.defect, &*item.key), (Some(ItemDefect::Redacted), "n")),
            _ => {
                assert_eq!(item.defect, None, "{field}");
                let expected = definition(field, "-[redacted:key]-");
                assert_eq!(item.definition, expected.definition, "{field}");
                assert_eq!(published(&item), item, "looking again changes nothing more");
            }
        }
    }
    let plain = definition(0, "");
    assert_eq!(published(&plain), plain);
    let text = r#"{"name":"n","inputSchema":{"properties":{"AKIAB":{}}}}"#;
    let item = Item::parse(Kind::Tool, text.into()).expect("an item");
    assert_eq!(published(&item).defect, Some(ItemDefect::Redacted), "the name of a member");
    let introduced = guard(rules.clone()).inspect_instructions(&hub(), Some("use AKIAB".into()));
    assert_eq!(introduced.as_deref(), Some("use [redacted:key]"));
}

// === Responses ===

#[test]
fn nobody_looks_where_nothing_is_to_be_looked_for() {
    let off = GuardRules {
        output: ResultCheck::Off,
        hidden_text: HiddenText::Pass,
        ..GuardRules::default()
    };
    let redacting = GuardRules { redact: vec![pattern("k", "x")], ..off.clone() };
    let all = GuardRules {
        results: vec![Kind::Prompt, Kind::Tool, Kind::Resource],
        ..GuardRules::default()
    };
    for (method, kind, by_default) in [
        (Method::GetPrompt, Kind::Prompt, true),
        (Method::Complete, Kind::Prompt, true),
        (Method::CallTool, Kind::Tool, false),
        (Method::TaskResult, Kind::Tool, false),
        (Method::ReadResource, Kind::Resource, false),
        (Method::Complete, Kind::Template, true),
    ] {
        assert_eq!(watch(GuardRules::default(), method, kind).is_some(), by_default, "{method:?}");
        // A completion is read whatever is set: some client could not read one that is too long.
        let is_read = method == Method::Complete;
        assert_eq!(watch(off.clone(), method, kind).is_some(), is_read, "{method:?}");
        assert!(watch(redacting.clone(), method, kind).is_some(), "{method:?}");
        assert!(watch(all.clone(), method, kind).is_some(), "{method:?}");
    }
    assert!(Guard::default().inspector(&hub(), Method::GetPrompt, Kind::Prompt, "p").is_none());
}

#[test]
fn escapes_hide_nothing_and_what_stays_keeps_its_bytes() {
    let result = r#"{ "messages" : [{"text":"a\u001b[0m\u0041","n":1e400}], "b":"\/\u0041" }"#;
    let hidden = Some('\u{1b}');
    let found = Findings { hidden, ..Findings::default() };
    assert_eq!(judged(hiding(HiddenText::Flag), result), Ok((result.into(), found)));
    assert_eq!(judged(hiding(HiddenText::Refuse), result), Err(InspectionError::Refused(found)));
    let escaped = result.replace(r"a\u001b[0m\u0041", "a<U+001B>[0mA");
    assert_eq!(judged(hiding(HiddenText::Escape), result), Ok((escaped, found)));
    let stripped = result.replace(r"a\u001b[0m\u0041", "a[0mA");
    assert_eq!(judged(hiding(HiddenText::Strip), result), Ok((stripped, found)));
}

#[test]
fn a_malformed_result_is_flagged_or_refused() {
    let bad = r#"{"messages":[{"role":"system","content":{"type":"text","text":"x"}}]}"#;
    let malformed = Some("a role is neither user nor assistant");
    let found = Findings { malformed, ..Findings::default() };
    let rules = |output| GuardRules { output, ..GuardRules::default() };
    assert_eq!(judged(rules(ResultCheck::Off), bad), Ok((bad.into(), Findings::default())));
    assert_eq!(judged(rules(ResultCheck::Flag), bad), Ok((bad.into(), found)));
    assert_eq!(judged(rules(ResultCheck::Refuse), bad), Err(InspectionError::Refused(found)));
    let no_object = Findings { malformed: Some("it is not a JSON object"), ..found };
    assert_eq!(judged(rules(ResultCheck::Refuse), "[]"), Err(InspectionError::Refused(no_object)));
}

#[test]
fn secrets_are_redacted_in_every_string_but_a_state() {
    let rules =
        GuardRules { redact: vec![pattern("key", "AKIA[A-Z]{4}")], ..hiding(HiddenText::Pass) };
    let result = r#"{"a":["AKIAABCD","\u0041KIAABCD"],"AKIAABCD":7,"requestState":"AKIAABCD"}"#;
    let expected =
        r#"{"a":["[redacted:key]","[redacted:key]"],"[redacted:key]":7,"requestState":"AKIAABCD"}"#;
    let found = Findings { redacted: 3, ..Findings::default() };
    assert_eq!(judged(rules, result), Ok((expected.into(), found)));
}

#[test]
fn what_is_hidden_does_not_hide_a_secret() {
    let rules = GuardRules { redact: vec![pattern("key", "AKIA")], ..hiding(HiddenText::Strip) };
    let found = Findings { redacted: 1, hidden: Some('\u{200b}'), ..Findings::default() };
    let expected = Ok((r#"["[redacted:key]"]"#.to_owned(), found));
    assert_eq!(judged(rules, "[\"AK\u{200b}IA\"]"), expected);
}

#[tokio::test]
async fn errors_are_looked_at_and_large_bodies_are_held() {
    let rules = GuardRules { redact: vec![pattern("key", "AKIA")], ..GuardRules::default() };
    let look = async |outcome| {
        let watch = watch(rules.clone(), Method::CallTool, Kind::Tool).expect("an inspector");
        let (reply, allowed) = (
            UpstreamResponse { era: Era::Modern, scope: None, outcome },
            BufferLimit::without_budget(1_000),
        );
        watch.inspect(reply, &allowed, |_| {}).await.map(|reply| match reply.outcome {
            // Later code, which searches for task names, gets the parsed result.
            ResponseOutcome::Result(Payload::Parsed(object)) => object.to_bytes(),
            ResponseOutcome::Error(text) => text,
            ResponseOutcome::Result(unread) => panic!("{unread:?}"),
        })
    };
    let error = ResponseOutcome::Error(r#"{"code":1,"message":"AKIA!","data":["AKIA"]}"#.into());
    let expected = r#"{"code":1,"message":"[redacted:key]!","data":["[redacted:key]"]}"#;
    assert_eq!(look(error).await, Ok(expected.into()));
    let arriving = |last| {
        let pieces = [Ok(Bytes::from("{\"a\":\"AK")), last];
        ResponseOutcome::Result(Payload::Streaming(futures::stream::iter(pieces).boxed()))
    };
    let read = ResponseOutcome::Result(Payload::from_part(r#"{"a":"AKIA"}"#.into(), None));
    assert_eq!(look(read).await, Ok(r#"{"a":"[redacted:key]"}"#.into()));
    let whole = arriving(Ok("IA\"}".into()));
    assert_eq!(look(whole).await, Ok(r#"{"a":"[redacted:key]"}"#.into()));
    let broken = PayloadBroken("gone".into());
    let unfit = InspectionError::Uncollected(broken.clone().into());
    assert_eq!(look(arriving(Err(broken))).await, Err(unfit));
    let unfit = InspectionError::Uncollected(BufferError::TooLarge(1_000).into());
    assert_eq!(look(arriving(Ok(vec![b'x'; 1_000].into()))).await, Err(unfit));
}

#[tokio::test(start_paused = true)]
async fn what_is_found_is_counted() {
    let rules = GuardRules { redact: vec![pattern("key", "AKIA")], ..GuardRules::default() };
    let guard = guard(GuardRules { hidden_text: HiddenText::Refuse, ..rules });
    let watch =
        guard.inspector(&hub(), Method::GetPrompt, Kind::Prompt, "p").expect("an inspector");
    for result in [r#"{"messages":[]}"#, r#"{"messages":["AKIA"]}"#, r#"{"messages":["\u0000"]}"#] {
        let _ = judge(&watch, result.into());
    }
    let params = Object::parse(r#"{"arguments":7}"#).expect("parameters");
    let admitted = guard.check_request(&hub(), Method::GetPrompt, None, &params);
    assert_eq!(admitted, Err(BadArguments::NoObject(ParseError::NotAnObject)));
    assert_eq!(guard.check_request(&hub(), Method::CallTool, None, &params), Ok(()));
    let counts = FindingCounts {
        arguments: 1,
        malformed: 2,
        redacted: 1,
        hidden: 1,
        refused: 1,
        ..FindingCounts::default()
    };
    assert_eq!(guard.counts().map(|(_, counts)| counts).collect::<Vec<_>>(), [counts]);
}

// === Streaming ===

/// Returns the findings in a prompt's result that arrives in these pieces, and the size of the
/// inspector's copy.
fn read_along(rules: &GuardRules, window: usize, pieces: &[&[u8]]) -> (Findings, usize) {
    let watch = watch(rules.clone(), Method::GetPrompt, Kind::Prompt).expect("an inspector");
    let mut abridged = StreamingInspector::new(window, rules.hidden_text);
    pieces.iter().for_each(|piece| abridged.feed(piece));
    let kept = abridged.finish();
    let bytes = kept.len();
    (judge(&watch, kept.into()).expect("nothing is refused").1, bytes)
}

#[tokio::test]
async fn a_result_of_which_is_only_told_passes_as_it_arrives_and_is_told_of_at_its_end() {
    let reported = Arc::new(weir_base::tasks::sync::Mutex::new(None));
    let look = async |pieces: Vec<Result<Bytes, PayloadBroken>>, room| {
        *reported.lock() = None;
        let watch = watch(GuardRules::default(), Method::GetPrompt, Kind::Prompt);
        let arriving = Payload::Streaming(stream::iter(pieces).boxed());
        let reply = UpstreamResponse {
            era: Era::Modern,
            scope: None,
            outcome: ResponseOutcome::Result(arriving),
        };
        let allowed = BufferLimit { limit: 8, budget: MemoryBudget::new(room) };
        let report = Arc::clone(&reported);
        let report = move |found| *report.lock() = Some(found);
        let looked = watch.expect("an inspector").inspect(reply, &allowed, report).await;
        match looked.expect("nothing is refused").outcome {
            ResponseOutcome::Result(Payload::Streaming(pieces)) => pieces,
            other => panic!("{other:?}"),
        }
    };
    let found = || *reported.lock();
    let result = ["{\"messages\":[\"\u{202e}", &"x".repeat(100_000), "\"]}"];
    let pieces = result.map(|piece| Ok(Bytes::from(piece.to_owned())));

    let mut passing = look(pieces.to_vec(), 50_000).await;
    for piece in &pieces {
        assert_eq!(passing.next().await.as_ref(), Some(piece));
        assert_eq!(found(), None);
    }
    assert_eq!(passing.next().await, None);
    let malformed = Some("an element is not an object");
    let all = Findings { malformed, hidden: Some('\u{202e}'), ..Findings::default() };
    assert_eq!(found(), Some(all));

    // A result that breaks off is not reported.
    let broken = PayloadBroken("gone".into());
    let mut passing = look(vec![pieces[0].clone(), Err(broken.clone())], 50_000).await;
    assert_eq!(passing.next().await.as_ref(), Some(&pieces[0]));
    assert_eq!(passing.next().await, Some(Err(broken)));
    assert_eq!((passing.next().await, found()), (None, None));

    // Names of members are kept completely, and use memory.
    let many = (0..5_000).map(|number| format!("\"name {number}\":7,")).collect::<String>();
    let mut passing = look(vec![Ok("{".into()), Ok(many.into())], 50_000).await;
    assert!(passing.next().await.is_some_and(|piece| piece.is_ok()));
    assert!(passing.next().await.is_some_and(|piece| piece.is_err()));
    assert_eq!((passing.next().await, found()), (None, None));
}

#[test]
fn a_long_string_takes_no_more_than_its_beginning_and_its_end() {
    for (member, text) in [
        ("text", "plain words, ".repeat(100_000)),
        ("text", "lines\\nand \\\"quotes\\\"\\t".repeat(100_000)),
        ("text", "слово 葛飾 👩\u{200d}👧 — ".repeat(50_000)),
        ("text", "\\u00e9crit".repeat(100_000)),
        ("data", "QUJD".repeat(300_000)),
    ] {
        let result = format!("{{\"messages\":[],\"{member}\":\"{text}\"}}");
        let pieces: Vec<_> = result.as_bytes().chunks(60_000).collect();
        let (found, kept) = read_along(&GuardRules::default(), WINDOW_BYTES, &pieces);
        assert_eq!(found, Findings::default(), "{member} {:.20}", text);
        assert!(kept < 3 * WINDOW_BYTES, "{member} {:.20}: {kept}", text);
    }
}

/// Parts of which a string's text in JSON is made, some of which are wrong.
fn parts() -> impl Strategy<Value = Vec<u8>> {
    let odd = prop::sample::select(HIDDEN.to_vec()).prop_map(String::from);
    let known = prop::sample::select(vec![
        "a",
        "QUJDREVG",
        "plain words",
        "=",
        "é",
        "👩",
        "\u{200d}",
        "\u{200e}",
        "\u{fe0f}",
        " ",
        ":",
        "<",
        ";",
        "/",
        "\\n",
        "\\\"",
        "\\\\",
        "\\u0041",
        "\\u202e",
        "\\ud83d\\ude00",
        "\\ud83d",
        "\\x",
        "\t",
        "http://h/",
    ]);
    let known = known.prop_map(str::to_owned);
    let text = prop_oneof![1 => odd, 9 => known].prop_map(String::into_bytes);
    let part = prop_oneof![60 => text, 1 => Just(vec![0xC3]), 1 => Just(vec![0xFF])];
    // Long runs of the same, which are what is left out.
    let run = (part, prop_oneof![Just(1_usize), Just(1), 2..40_usize]);
    let runs = prop::collection::vec(run, 0..8);
    runs.prop_map(|runs| runs.iter().flat_map(|(part, times)| part.repeat(*times)).collect())
}

/// A block of content, well made or nearly.
fn block() -> impl Strategy<Value = Vec<u8>> {
    let member = prop::sample::select(vec![
        "text",
        "data",
        "uri",
        "mimeType",
        "blob",
        "requestState",
        "d\\u0061ta",
        "x",
    ]);
    let kind = prop::sample::select(vec!["text", "image", "resource_link", "resource"]);
    let digits = "[A-Za-z0-9+/]{0,120}={0,2}".prop_map(String::into_bytes);
    let members = prop::collection::vec((member, prop_oneof![2 => parts(), 1 => digits]), 0..4);
    let deep = any::<bool>();
    (kind, members, deep).prop_map(|(kind, members, deep)| {
        let mut block = format!("{{\"type\":\"{kind}\"").into_bytes();
        if deep {
            block.extend(b",\"resource\":{\"uri\":\"a:b\"");
        }
        for (member, text) in members {
            block.extend([b",\"", member.as_bytes(), b"\" : \"", &text, b"\""].concat());
        }
        block.extend(if deep { &b"}}"[..] } else { b"}" });
        block
    })
}

proptest! {
    // `PROPTEST_CASES` asks for more by night.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(1_000)))]

    #[test]
    fn whoever_reads_along_finds_what_is_found_in_the_whole(
        blocks in prop::collection::vec(block(), 1..4),
        window in prop_oneof![Just(8_usize), Just(32), Just(200)],
        piece in 1..300_usize,
        hidden_text in prop::sample::select(vec![HiddenText::Pass, HiddenText::Flag]),
    ) {
        let messages = blocks.iter().map(|block| {
            [b"{\"role\":\"user\",\"content\":", &block[..], b"}"].concat()
        });
        let messages = messages.collect::<Vec<_>>().join(&b","[..]);
        let text = [b"{\"messages\":[", &messages[..], b"]}"].concat();
        let rules = GuardRules { hidden_text, ..GuardRules::default() };
        let watch = watch(rules.clone(), Method::GetPrompt, Kind::Prompt).expect("an inspector");
        let (_, whole) = judge(&watch, text.clone().into()).expect("nothing is refused");
        let pieces: Vec<_> = text.chunks(piece).collect();
        prop_assert_eq!(read_along(&rules, window, &pieces).0, whole);
    }
}

// === Looking again ===

fn letters() -> impl Strategy<Value = String> {
    let odd = prop::sample::select(HIDDEN.to_vec());
    let some =
        prop::sample::select(vec!['a', 'b', 'é', '👩', '\u{200d}', '\u{fe0f}', ' ', '[', ']', ':']);
    prop::collection::vec(prop_oneof![odd, some.clone(), some], 0..16).prop_map(String::from_iter)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(500)))]

    #[test]
    fn looking_again_changes_nothing_more(
        texts in prop::collection::vec(letters(), 0..4),
        setting in prop::sample::select(vec![
            HiddenText::Pass, HiddenText::Flag, HiddenText::Escape, HiddenText::Strip,
        ]),
        patterns in prop::collection::vec(
            prop::sample::select(vec!["a+", "^b", "b$", "é.", "\\bb", "red", "[^a]b", "k\\]a", ".+", "\\[.*"]),
            0..4,
        ),
    ) {
        let patterns = patterns.into_iter().enumerate();
        let redact = patterns.map(|(at, it)| pattern(&format!("k{at}"), it)).collect();
        let rules = GuardRules { redact, ..hiding(setting) };
        let Some(watch) = watch(rules, Method::CallTool, Kind::Prompt) else { return Ok(()) };
        let text: Bytes = serde_json::to_string(&texts).expect("strings are writable").into();
        let (once, _) = judge(&watch, text).expect("nothing is refused");
        let (twice, _) = judge(&watch, once.clone()).expect("nothing is refused");
        prop_assert_eq!(once, twice);
    }
}
