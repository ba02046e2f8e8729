//! Tests of pinning as a whole: the served items in each mode, the logged differences, and the
//! file.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;
use weir_mcp::name::UpstreamName;

fn hub() -> UpstreamName {
    "hub".parse().expect("a name")
}

fn pins(mode: Mode, file: Option<&Path>) -> Pins {
    Pins::open(Settings {
        modes: vec![(hub(), mode)],
        file: file.map(Path::to_owned),
        ..Settings::default()
    })
}

/// A tool in some version.
fn tool(name: &str, version: u32) -> Item {
    let text = format!(
        r#"{{"name":"{name}","description":"version {version}","inputSchema":{{"type":"object"}}}}"#
    );
    Item::parse(Kind::Tool, text.into()).expect("a tool")
}

fn tools(all: &[(&str, u32)]) -> Vec<Item> {
    all.iter().map(|(name, version)| tool(name, *version)).collect()
}

/// Returns the served items of a list, by name.
fn served(pins: &Pins, all: &[(&str, u32)]) -> String {
    let served = pins.filter_approved(&hub(), Kind::Tool, tools(all));
    served.iter().map(|item| &*item.key).collect::<Vec<_>>().join(" ")
}

fn different(pins: &Pins) -> Vec<String> {
    let one = |it: Difference| format!("{} {:?}", it.key, it.change);
    pins.differences().into_iter().map(one).collect()
}

#[test]
fn the_first_list_is_trusted_and_later_changes_are_not() {
    let pins = pins(Mode::Enforce, None);
    assert_eq!(served(&pins, &[("a", 1), ("b", 1)]), "a b");
    assert_eq!(served(&pins, &[("a", 2), ("b", 1), ("c", 1)]), "b");
    assert_eq!(different(&pins), ["a Changed([])", "c New"]);
    // It says again what was approved.
    assert_eq!(served(&pins, &[("a", 1), ("b", 1)]), "a b");
    // It was away for a while.
    assert_eq!(served(&pins, &[("a", 1)]), "a");
    assert_eq!(different(&pins), ["b Missing"]);
    assert_eq!(served(&pins, &[("a", 1), ("b", 2)]), "a");
    assert_eq!(pins.approve(&hub(), Some("b")).map(|it| it.len()).ok(), Some(1));
    assert_eq!(served(&pins, &[("a", 1), ("b", 2)]), "a b");
    assert_eq!(served(&pins, &[("a", 1), ("b", 1)]), "a");
}

#[test]
fn nothing_is_served_that_only_an_operator_may_approve() {
    let pins = pins(Mode::Locked, None);
    assert_eq!(served(&pins, &[("a", 1)]), "");
    assert_eq!(pins.filter_instructions(&hub(), Some("hi".into())), None);
    pins.approve(&hub(), None).expect("in memory");
    assert_eq!(served(&pins, &[("a", 1), ("b", 1)]), "a");
    assert_eq!(pins.filter_instructions(&hub(), Some("hi".into())).as_deref(), Some("hi"));
    assert_eq!(pins.filter_instructions(&hub(), Some("ho".into())), None);
}

#[test]
fn everything_is_served_where_it_is_only_told() {
    for mode in [Mode::Off, Mode::Review, Mode::Alert] {
        let pins = pins(mode, None);
        assert_eq!(served(&pins, &[("a", 1)]), "a");
        assert_eq!(served(&pins, &[("a", 2), ("b", 1)]), "a b");
        for text in ["hi", "ho"] {
            assert_eq!(pins.filter_instructions(&hub(), Some(text.into())).as_deref(), Some(text));
        }
        assert!(!pins.enforces(&hub()));
    }
}

#[test]
fn every_member_counts_and_the_way_of_writing_does_not() {
    let pins = pins(Mode::Enforce, None);
    let screen = |text: &str| {
        let item = Item::parse(Kind::Tool, text.to_owned().into()).expect("a tool");
        pins.filter_approved(&hub(), Kind::Tool, vec![item]).len()
    };
    let plain = r#"{"name":"a","description":"d","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true},"_meta":{"n":1}}"#;
    assert_eq!(screen(plain), 1);
    let other = r#"{ "_meta" : {"n":1.0}, "inputSchema":{"type":"object"},"description":"\u0064","annotations":{"readOnlyHint":true},"name":"a"}"#;
    assert_eq!(screen(other), 1);
    for (from, to) in [
        ("\"d\"", "\"d \""),
        ("true", "false"),
        ("{\"n\":1}", "{\"n\":2}"),
        ("\"object\"}", "\"object\",\"title\":\"t\"}"),
        (",\"_meta\":{\"n\":1}", ""),
        ("\"description\"", "\"title\""),
    ] {
        assert_eq!(screen(&plain.replace(from, to)), 0, "{to}");
    }
    assert_eq!(screen(plain), 1);
}

#[test]
fn of_a_name_that_is_listed_twice_each_text_counts() {
    let pins = pins(Mode::Enforce, None);
    assert_eq!(served(&pins, &[("a", 1)]), "a");
    let both = pins.filter_approved(&hub(), Kind::Tool, tools(&[("a", 2), ("a", 1)]));
    assert_eq!(both, tools(&[("a", 1)]));
    let both = pins.filter_approved(&hub(), Kind::Tool, tools(&[("a", 1), ("a", 2)]));
    assert_eq!(both, tools(&[("a", 1)]));
}

#[test]
fn a_new_name_for_what_was_approved_is_told_as_such_and_not_served() {
    let pins = pins(Mode::Enforce, None);
    assert_eq!(served(&pins, &[("a", 1), ("b", 2)]), "a b");
    let found = |all: &[(&str, u32)]| {
        let items = tools(all);
        let listed = state::digest_list(&items, None, &RandomState::new());
        let approved = pins.approved().upstreams["hub"].kinds[1].clone().unwrap_or_default();
        state::differences(&listed, &approved, None, &items)
    };
    let renamed = |to: &str, from: &str| (to.to_owned(), Change::Renamed(from.to_owned()));
    assert_eq!(found(&[("c", 1), ("b", 2)]), [renamed("c", "a")]);
    let both = [renamed("c", "b"), renamed("d", "a")];
    assert_eq!(found(&[("d", 1), ("c", 2)]), both);
    // It is still there under the old one, too.
    assert_eq!(found(&[("a", 1), ("b", 2), ("c", 1)]), [("c".to_owned(), Change::New)]);
    assert_eq!(served(&pins, &[("c", 1), ("b", 2)]), "b");
}

#[test]
fn former_names_are_looked_for_in_lists_of_any_length_within_a_bound() {
    // In sorted order, as they are compared.
    let names = |prefix: &str, count: usize| -> Vec<String> {
        (0..count).map(|at| format!("{prefix}{at:05}")).collect()
    };
    let list = |names: &[String], version: u32| {
        tools(&names.iter().map(|name| (&**name, version)).collect::<Vec<_>>())
    };
    let found = |was: &[Item], is: &[Item]| {
        let [was, listed] = [was, is].map(|it| state::digest_list(it, None, &RandomState::new()));
        let approved = was.iter().map(|(key, seen)| (key.clone(), seen.digest)).collect();
        state::differences(&listed, &approved, None, is)
    };
    let renamed = |found: &[(String, Change)]| {
        found.iter().filter(|(_, change)| matches!(change, Change::Renamed(_))).count()
    };
    let (old, new) = (names("a", 2_000), names("b", 2_000));
    assert_eq!(renamed(&found(&list(&old, 1), &list(&new, 1))), 2_000);
    // Only so many renamed items are searched that it cannot take long; the rest counts as new.
    let all = found(&list(&old, 1), &list(&new, 2));
    assert_eq!((renamed(&all), all.len()), (0, 4_000));
    let last = [list(&new[..1_999], 2), list(&new[1_999..], 1)].concat();
    assert_eq!(renamed(&found(&list(&old, 1), &last)), 0, "nothing is tried any more");
}

#[test]
fn what_changed_is_told_by_its_members() {
    let (hasher, approved) = (RandomState::new(), |items: &[Item]| {
        let read = state::digest_list(items, None, &RandomState::new());
        read.iter().map(|(key, seen)| (key.clone(), seen.digest)).collect()
    });
    let tool = |text: &'static str| vec![Item::parse(Kind::Tool, text.into()).expect("a tool")];
    let was = tool(r#"{"name":"a","description":"x","title":"t"}"#);
    let is = tool(r#"{"name":"a","description":"y","annotations":{}}"#);
    let before = state::digest_list(&was, None, &hasher);
    let now = state::digest_list(&is, Some(&before), &hasher);
    let found = state::differences(&now, &approved(&was), Some(&before), &is);
    let members = ["description", "annotations", "title"].map(str::to_owned).to_vec();
    assert_eq!(found, [("a".to_owned(), Change::Changed(members))]);
}

#[test]
fn resources_are_not_pinned() {
    let pins = pins(Mode::Locked, None);
    let text = r#"{"uri":"a:b","name":"n"}"#;
    let resource = || Item::parse(Kind::Resource, text.into()).expect("a resource");
    assert_eq!(pins.filter_approved(&hub(), Kind::Resource, vec![resource()]), [resource()]);
}

// === The file ===

#[test]
fn what_was_trusted_is_remembered() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("weir.lock");
    let first = pins(Mode::Enforce, Some(&path));
    assert_eq!(first.filter_instructions(&hub(), None), None);
    assert_eq!(served(&first, &[("a", 1)]), "a");
    let again = pins(Mode::Enforce, Some(&path));
    assert_eq!(again.approved(), first.approved());
    assert_eq!(again.filter_instructions(&hub(), Some("hi".into())), None);
    assert_eq!(served(&again, &[("a", 2), ("b", 1)]), "");
    // Another kind is seen for the first time.
    assert_eq!(again.filter_approved(&hub(), Kind::Prompt, Vec::new()), []);
    let text = std::fs::read_to_string(&path).expect("it is there");
    assert!(
        text.contains("[upstreams.hub.prompts]\n\n[upstreams.hub.tools]\n\"a\" = \"v1:"),
        "{text}"
    );
    assert!(text.contains("instructions = \"none\""), "{text}");
}

#[test]
fn a_file_that_is_changed_counts_from_then_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("weir.lock");
    let (running, reviewing) = (pins(Mode::Enforce, Some(&path)), pins(Mode::Review, Some(&path)));
    assert_eq!(served(&running, &[("a", 1)]), "a");
    assert_eq!(served(&running, &[("a", 2)]), "");
    let approvals = running.subscribe_approvals();
    reload::reload(&reviewing);
    assert_eq!(served(&reviewing, &[("a", 2)]), "a");
    reviewing.approve(&hub(), None).expect("it is written");
    reload::reload(&running);
    assert!(approvals.has_changed().expect("it lives"));
    assert_eq!(served(&running, &[("a", 2)]), "a");
    assert_eq!(served(&running, &[("a", 1)]), "");
    // Broken, or gone: what was approved stays so, and nothing else is approved.
    for broken in [Some("version = 1\nodd"), None] {
        match broken {
            Some(text) => std::fs::write(&path, text).expect("written"),
            None => std::fs::remove_file(&path).expect("removed"),
        }
        reload::reload(&running);
        assert_eq!(served(&running, &[("a", 2), ("b", 1)]), "a");
        assert_eq!(running.filter_approved(&hub(), Kind::Prompt, Vec::new()), []);
        assert_eq!(running.approved().upstreams["hub"].kinds[0], None);
    }
}

#[test]
fn what_cannot_be_remembered_is_not_trusted() {
    let folder = tempfile::tempdir().expect("a folder");
    let nowhere = pins(Mode::Enforce, Some(&folder.path().join("gone/weir.lock")));
    assert_eq!(served(&nowhere, &[("a", 1)]), "");
    let path = folder.path().join("weir.lock");
    std::fs::write(&path, "version = 7").expect("written");
    let broken = pins(Mode::Enforce, Some(&path));
    assert_eq!(served(&broken, &[("a", 1)]), "");
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "version = 7");
}

#[test]
fn what_another_writes_meanwhile_stays_approved() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("weir.lock");
    let operator = pins(Mode::Review, Some(&path));
    assert_eq!(served(&operator, &[("a", 1), ("b", 2)]), "a b");
    let serving = pins(Mode::Enforce, Some(&path));
    assert_eq!(served(&serving, &[("a", 1), ("c", 1)]), "a c");
    assert_eq!(serving.filter_approved(&hub(), Kind::Prompt, Vec::new()), []);

    // Against what the file says now: `a` is no news any more.
    let approved = operator.approve(&hub(), Some("b")).expect("written");
    let told: Vec<_> = approved.iter().map(|it| (&*it.key, it.change.clone())).collect();
    assert_eq!(told, [("b", Change::New)]);
    let lock = PinFile::load(&path).expect("readable").expect("it is there");
    let [prompts, tools, _] = &lock.upstreams["hub"].kinds;
    let tools: Vec<_> = tools.iter().flatten().map(|(name, _)| &**name).collect();
    assert_eq!((prompts.as_ref().map(BTreeMap::len), tools), (Some(0), vec!["a", "b", "c"]));
    assert_eq!(operator.approved(), lock);

    // An unreadable file is not overwritten.
    std::fs::write(&path, "version = 7").expect("written");
    assert!(matches!(operator.approve(&hub(), None), Err(BadLock::Content(_))));
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "version = 7");
}

#[test]
fn what_is_approved_is_what_is_told() {
    // A long list of another upstream makes computing the differences slow.
    let wiki: UpstreamName = "wiki".parse().expect("a name");
    let modes = vec![(hub(), Mode::Locked), (wiki.clone(), Mode::Locked)];
    let pins = Pins::open(Settings { modes, ..Settings::default() });
    let names: Vec<String> = (0..10_000).map(|at| format!("tool {at}")).collect();
    let all: Vec<(&str, u32)> = names.iter().map(|name| (&**name, 1)).collect();
    pins.filter_approved(&wiki, Kind::Tool, tools(&all));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Comes and goes while it is approved.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                served(&pins, &[("a", 1)]);
                std::thread::yield_now();
                served(&pins, &[]);
                std::thread::yield_now();
            }
        });
        let odd = (0..40).find_map(|_| {
            let told = pins.approve(&hub(), None).expect("in memory").pop()?.change;
            let approved = pins.approved().upstreams["hub"].kinds[1].as_ref()?.contains_key("a");
            (approved != (told == Change::New)).then_some((told, approved))
        });
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(odd, None);
    });
}

#[test]
fn a_file_that_comes_back_as_it_was_is_used_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, away) = (folder.path().join("weir.lock"), folder.path().join("away"));
    let pins = pins(Mode::Enforce, Some(&path));
    assert_eq!(served(&pins, &[("a", 1)]), "a");
    let prompt = || vec![Item::parse(Kind::Prompt, r#"{"name":"p"}"#.into()).expect("a prompt")];
    std::fs::rename(&path, &away).expect("moved");
    reload::reload(&pins);
    assert_eq!(pins.filter_approved(&hub(), Kind::Prompt, prompt()), []);
    std::fs::rename(&away, &path).expect("moved");
    reload::reload(&pins);
    assert_eq!(pins.filter_approved(&hub(), Kind::Prompt, prompt()), prompt());
}

// === Any sequence of edits ===

#[derive(Debug, Clone)]
enum Edit {
    Set(usize, u32),
    Remove(usize),
    ApproveAll,
    Approve(usize),
    /// An approval is removed from the file.
    Revoke(usize),
    /// The list is read while half of it is the old one.
    Torn,
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = prop_oneof![
        4 => (0..4_usize, 0..4_u32).prop_map(|(at, version)| Edit::Set(at, version)),
        1 => (0..4_usize).prop_map(Edit::Remove),
        1 => Just(Edit::ApproveAll),
        1 => (0..4_usize).prop_map(Edit::Approve),
        1 => (0..4_usize).prop_map(Edit::Revoke),
        1 => Just(Edit::Torn),
    ];
    prop::collection::vec(edit, 25)
}

proptest! {
    // 25 000 edits; by night `PROPTEST_CASES` asks for more.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(1_000)))]

    #[test]
    fn what_is_not_approved_is_never_served(edits in edits(), locked in any::<bool>()) {
        let pins = pins(if locked { Mode::Locked } else { Mode::Enforce }, None);
        // The list of a server and the approvals, by version.
        let (mut listed, mut approved) = (BTreeMap::new(), BTreeMap::<&str, u32>::new());
        let mut old = Vec::new();
        for (step, edit) in edits.into_iter().enumerate() {
            match edit {
                Edit::Set(at, version) => { listed.insert(NAMES[at], version); }
                Edit::Remove(at) => { listed.remove(NAMES[at]); }
                _ => {}
            }
            let all: Vec<(&str, u32)> = listed.iter().map(|(name, version)| (*name, *version)).collect();
            let read = match edit {
                Edit::Torn => {
                    let half = all.len() / 2;
                    all.iter().take(half).chain(&old).copied().collect()
                }
                _ => all.clone(),
            };
            old = all;
            if step == 0 && !locked {
                approved = read.iter().copied().collect();
            }
            let served = pins.filter_approved(&hub(), Kind::Tool, tools(&read));
            let expected = read.iter().filter(|(name, version)| approved.get(name) == Some(version));
            let expected: Vec<_> = expected.copied().collect();
            prop_assert_eq!(served, tools(&expected));
            // Of a name that is listed twice, the first item counts.
            let first = |name: &str| read.iter().find(|(it, _)| *it == name).map(|(_, version)| *version);
            let accept = |name: &'static str, approved: &mut BTreeMap<&str, u32>| match first(name) {
                Some(version) => { approved.insert(name, version); }
                None => { approved.remove(name); }
            };
            match edit {
                Edit::ApproveAll => {
                    NAMES.into_iter().for_each(|name| accept(name, &mut approved));
                    pins.approve(&hub(), None).expect("in memory");
                }
                Edit::Approve(at) => {
                    // A new name for an old thing is the end of the old one.
                    let renamed = pins.differences().into_iter().find_map(|it| match it.change {
                        Change::Renamed(was) if was == NAMES[at] => Some(it.key),
                        _ => None,
                    });
                    prop_assert_eq!(renamed, None, "nothing is kept for review here");
                    accept(NAMES[at], &mut approved);
                    pins.approve(&hub(), Some(NAMES[at])).expect("in memory");
                }
                Edit::Revoke(at) => {
                    approved.remove(NAMES[at]);
                    let mut state = pins.lock();
                    if let Some(hub) = state.lock.upstreams.get_mut("hub") {
                        hub.kinds[1].get_or_insert_default().remove(NAMES[at]);
                    }
                }
                Edit::Set(..) | Edit::Remove(_) | Edit::Torn => {}
            }
        }
    }
}

// === Texts ===

fn with_texts(mode: Mode, folder: &Path, secrets: &[&str]) -> Pins {
    let secrets = secrets.iter().copied().map(Secret::from).collect();
    Pins::open(Settings {
        modes: vec![(hub(), mode)],
        file: Some(folder.join("weir.lock")),
        texts: Some(folder.join("state/approved")),
        secrets: vec![(hub(), secrets)],
        ..Settings::default()
    })
}

/// Returns both texts of the only difference of a list in review.
fn texts_of(folder: &Path, secrets: &[&str], list: &[(&str, u32)]) -> Vec<String> {
    let review = with_texts(Mode::Review, folder, secrets);
    served(&review, list);
    let differences = review.differences();
    let shown = |it: &Difference| {
        let DefinitionTexts { approved, is_first_seen, listed } = review.texts(it);
        let version = |text: String| {
            let (_, rest) = text.split_once("version ").unwrap_or(("", "***\""));
            rest.split('"').next().unwrap_or_default().to_owned()
        };
        let approved = approved.map(|text| match text {
            Ok(text) => version(text),
            Err(TextUnavailable::Missing(_)) => "missing".to_owned(),
            Err(error) => error.to_string(),
        });
        let listed = listed.map(version);
        format!("{} {} {approved:?} {is_first_seen} {listed:?}", it.key, it.change)
    };
    differences.iter().map(shown).collect()
}

#[test]
fn the_approved_text_is_stored_when_it_is_listed_and_shown_when_it_has_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let pins = with_texts(Mode::Enforce, folder, &[]);
    assert_eq!(served(&pins, &[("a", 1), ("b", 1)]), "a b");
    assert_eq!(served(&pins, &[("a", 2), ("c", 5)]), "");
    assert_eq!(
        texts_of(folder, &[], &[("a", 2), ("c", 5)]),
        [
            r#"a changed Some("1") false Some("2")"#,
            r#"b missing Some("1") false None"#,
            r#"c new None false Some("5")"#,
        ]
    );
    // An approval stores the new text at once.
    let review = with_texts(Mode::Review, folder, &[]);
    served(&review, &[("a", 2), ("c", 5)]);
    review.approve(&hub(), None).expect("approved");
    assert_eq!(
        texts_of(folder, &[], &[("a", 3), ("c", 5)]),
        [r#"a changed Some("2") false Some("3")"#]
    );
    // The texts are lost, and stored again when the approved definitions are listed.
    std::fs::remove_dir_all(folder.join("state")).expect("removed");
    assert_eq!(
        texts_of(folder, &[], &[("a", 3), ("c", 5)]),
        [r#"a changed Some("missing") false Some("3")"#]
    );
    reload::reload(&pins);
    assert_eq!(served(&pins, &[("a", 2), ("c", 5)]), "a c");
    assert_eq!(
        texts_of(folder, &[], &[("a", 3), ("c", 5)]),
        [r#"a changed Some("2") false Some("3")"#]
    );
}

#[test]
fn what_is_seen_first_under_alert_is_stored_also_over_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    assert_eq!(served(&with_texts(Mode::Alert, folder, &[]), &[("a", 1)]), "a");
    // Another process, or the next one, changes nothing of it.
    let pins = with_texts(Mode::Alert, folder, &[]);
    assert_eq!(served(&pins, &[("a", 2), ("b", 1)]), "a b");
    assert!(!folder.join("weir.lock").exists());
    assert_eq!(
        texts_of(folder, &[], &[("a", 2), ("b", 1)]),
        [r#"a new Some("1") true Some("2")"#, r#"b new None false Some("1")"#]
    );
    assert_eq!(
        pins.filter_instructions(&hub(), Some("be kind".into())).as_deref(),
        Some("be kind")
    );
    let review = with_texts(Mode::Review, folder, &[]);
    review.filter_instructions(&hub(), Some("be cruel".into()));
    let differences = review.differences();
    let DefinitionTexts { approved, is_first_seen, listed } = review.texts(&differences[0]);
    assert_eq!(approved.and_then(Result::ok).as_deref(), Some("\"be kind\""));
    assert_eq!((is_first_seen, listed.as_deref()), (true, Some("\"be cruel\"")));
}

#[test]
fn a_text_with_a_secret_of_the_configuration_is_neither_stored_nor_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let pins = with_texts(Mode::Enforce, folder, &["version 1", "true"]);
    assert_eq!(served(&pins, &[("a", 1), ("b", 2)]), "a b");
    let shown = texts_of(folder, &["version 1"], &[("a", 1), ("b", 3)]);
    assert_eq!(shown, [r#"b changed Some("2") false Some("3")"#]);
    let shown = texts_of(folder, &["version 1", "version 3"], &[("a", 2), ("b", 3)]);
    assert_eq!(shown[0], r#"a changed Some("missing") false Some("2")"#);
    assert!(shown[1].contains("***"), "{shown:?}");
    let stored = std::fs::read_dir(folder.join("state/approved")).expect("a folder");
    for entry in stored.flatten() {
        let text = std::fs::read_to_string(entry.path()).expect("text");
        assert!(!text.contains("version 1"), "{text}");
    }
}

#[test]
fn a_state_folder_that_cannot_be_written_changes_nothing_that_is_served() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    std::fs::write(folder.join("state"), "").expect("written");
    for mode in [Mode::Enforce, Mode::Alert] {
        let pins = with_texts(mode, folder, &[]);
        assert_eq!(served(&pins, &[("a", 1), ("b", 1)]), "a b", "{mode:?}");
        assert_eq!(served(&pins, &[("a", 1), ("b", 1)]), "a b", "{mode:?}");
    }
    let shown = texts_of(folder, &[], &[("a", 2), ("b", 1)]);
    assert!(shown[0].contains("a changed Some(\"its text cannot be read"), "{shown:?}");
}

#[test]
fn approvals_that_are_made_or_taken_up_are_observed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("weir.lock");
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let sees = Arc::clone(&seen);
    let observer = ApprovalObserver(Some(Arc::new(move |upstream, by, changes| {
        sees.lock().push(format!("{upstream} by {by}: {}", changes.join(", ")));
    })));
    let modes = vec![(hub(), Mode::Enforce)];
    let settings = Settings { modes, file: Some(path.clone()), observer, ..Settings::default() };
    let pins = Pins::open(settings.clone());
    served(&pins, &[("a", 1), ("b", 1)]);
    served(&pins, &[("a", 2)]);
    let mut lock = pins.approved();
    let table = lock.upstreams.get_mut("hub").and_then(|hub| hub.kinds[1].as_mut());
    let table = table.expect("tools are pinned");
    table.remove("b");
    table.insert("c".to_owned(), Digest::of_text("c"));
    lock.save(&path).expect("written");
    reload::reload(&pins);
    // The next process has them from its start.
    served(&Pins::open(settings), &[("a", 1)]);
    assert_eq!(
        *seen.lock(),
        ["hub by first list: new tool a, new tool b", "hub by file: new tool c, removed tool b"]
    );
}

#[test]
fn a_server_that_always_lists_other_names_does_not_fill_the_file_of_what_was_seen_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let pins = with_texts(Mode::Alert, folder.path(), &[]);
    let names = |from: usize| (from..from + 1_500).map(|it| format!("t{it}")).collect::<Vec<_>>();
    for from in [0, 1_500, 3_000] {
        let names = names(from);
        served(&pins, &names.iter().map(|name| (&**name, 1)).collect::<Vec<_>>());
    }
    let file = folder.path().join("state/approved/hub.first-seen");
    let text = std::fs::read_to_string(file).expect("there");
    assert_eq!(text.lines().filter(|line| line.starts_with('"')).count(), 1_500);
    assert!(text.contains("\"t3000\"") && !text.contains("\"t10\""));
}
