//! Tests of the catalog by examples; `properties.rs` has those by properties.

mod introductions;
mod large;
mod properties;

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::*;
use weir_mcp::definition::downgrade::DefinitionForm;
use weir_mcp::definition::item::{Item, ItemDefect};
use weir_mcp::kind::ListTopic;
use weir_mcp::name::Characters;
use weir_mcp::pattern::AllowDeny;

/// A role made of patterns over `<upstream>/<key>`, the same for all kinds.
struct Sees(AllowDeny);

impl Filter for Sees {
    fn allows(&self, _kind: Kind, upstream: &UpstreamName, key: &str) -> bool {
        self.0.allow(&format!("{upstream}/{key}"))
    }

    fn allows_uri(&self, upstream: &UpstreamName, uri: &CanonicalUri<'_>) -> bool {
        self.0.decide_uri(&format!("{upstream}/"), uri).allows()
    }

    fn resources(&self) -> &AllowDeny {
        &self.0
    }

    fn reaches(&self, upstream: &UpstreamName) -> bool {
        let prefix = format!("{upstream}/");
        let texts = || self.0.allow.iter().map(|pattern| pattern.as_str());
        texts().any(|text| text.starts_with('*') || text.starts_with(&prefix))
    }
}

fn sees(allow: &[&str], deny: &[&str]) -> Arc<dyn Filter> {
    Arc::new(Sees(AllowDeny::new(allow, deny)))
}

fn name(text: &str) -> UpstreamName {
    text.parse().expect(text)
}

fn export(text: &str) -> ExportRules {
    let everything = AllowDeny::everything;
    ExportRules {
        name: name(text),
        prefix: name(text),
        prompts: everything(),
        tools: everything(),
        resources: everything(),
        rename: Vec::new(),
    }
}

fn settings(upstreams: &[&str]) -> Settings {
    let exports = upstreams.iter().map(|upstream| export(upstream)).collect();
    Settings {
        naming: Naming::default(),
        exports,
        page_items: 2,
        page_bytes: 1_000,
        instructions: true,
    }
}

fn catalog(upstreams: &[&str]) -> Catalog {
    Catalog::new(settings(upstreams))
}

fn item(kind: Kind, key: &str, version: u8) -> Item {
    let text = format!(r#"{{"{}":"{key}","v":{version}}}"#, kind.key_member());
    Item::parse(kind, text.into()).expect("an item")
}

fn snapshot(kind: Kind, keys: &[&str]) -> ListSnapshot {
    let items = keys.iter().map(|key| item(kind, key, 0)).collect();
    ListSnapshot { items, fresh_until: None, is_private: false, cut: None }
}

impl Catalog {
    fn lists(&self, upstream: &str, kind: Kind, keys: &[&str]) {
        self.publish(&name(upstream), kind, snapshot(kind, keys));
    }

    fn seen(&self, allow: &[&str], deny: &[&str]) -> Arc<RoleView> {
        let role = format!("{allow:?}{deny:?}");
        self.view(&role, &sees(allow, deny)).borrow().clone()
    }
}

impl RoleView {
    /// All pages of a list, as public keys.
    fn keys(&self, kind: Kind) -> Vec<String> {
        let (mut keys, mut after) = (Vec::new(), None);
        loop {
            let page = self.page(kind, after.as_ref(), DefinitionForm::Newest);
            keys.extend(keys_on(&page, kind));
            after = page.next;
            if after.is_none() {
                return keys;
            }
        }
    }

    /// The upstream that a URI is routed to.
    fn owner(&self, uri: &str) -> Option<String> {
        self.resolve_uri(uri).map(|target| target.upstream.to_string())
    }
}

fn keys_on(page: &CatalogPage, kind: Kind) -> Vec<String> {
    let items: Vec<_> = weir_base::json::elements(&page.items).expect("a page is a list").collect();
    let keys = items.into_iter().map(|text| Item::parse(kind, text).expect("an item").key.into());
    keys.collect()
}

#[test]
fn the_list_is_in_order_of_upstream_and_name_whatever_the_prefix() {
    let mut settings = settings(&["b", "a"]);
    settings.exports[1].prefix = name("zz");
    let catalog = Catalog::new(settings);
    catalog.lists("b", Kind::Tool, &["x", "B", "a"]);
    catalog.lists("a", Kind::Tool, &["y", "z"]);
    let keys = catalog.seen(&["*"], &[]).keys(Kind::Tool);
    assert_eq!(keys, ["zz__y", "zz__z", "b__B", "b__a", "b__x"]);
}

/// Public names, as (own name, public name), of tools that an upstream lists in this order.
fn named(upstream: &str, own: &[&str]) -> Vec<(String, String)> {
    let catalog = catalog(&[upstream]);
    catalog.lists(upstream, Kind::Tool, own);
    let view = catalog.seen(&["*"], &[]);
    let targets = view.items(Kind::Tool).iter();
    let mut named: Vec<_> =
        targets.map(|target| (target.own.to_string(), target.key.to_string())).collect();
    named.sort();
    named
}

#[test]
fn names_that_providers_refuse_are_altered_alike_in_every_order_and_catalog() {
    let long = "l".repeat(60);
    let own = ["a.b", "a/b", "a b", "a_b", "größe", "日本", &long];
    let named_here = named("hub", &own);
    assert_eq!(named_here.len(), own.len(), "{named_here:?}");
    let is_portable = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let fits = |public: &String| public.len() <= 53 && public.chars().all(is_portable);
    assert!(named_here.iter().all(|(_, public)| fits(public)), "{named_here:?}");
    assert!(named_here.contains(&("a_b".into(), "hub__a_b".into())), "{named_here:?}");
    // A restart is another catalog; upstreams list in any order.
    assert_eq!(named("hub", &own.into_iter().rev().collect::<Vec<_>>()), named_here);
    // Another upstream's names are others.
    let elsewhere = named("other", &own);
    assert!(elsewhere.iter().all(|(_, public)| named_here.iter().all(|(_, here)| here != public)));
}

#[test]
fn a_name_equal_to_another_ones_altered_form_hides_neither_first_nor_last() {
    let export = export("hub");
    let public = export.public_key(&Naming::default(), Kind::Tool, "a.b");
    let twin = public.strip_prefix("hub__").expect("the prefix");
    for order in [["a.b", twin, "c"], [twin, "a.b", "c"]] {
        assert_eq!(named("hub", &order), [("c".to_owned(), "hub__c".to_owned())]);
    }
    assert_eq!(named("hub", &[twin]), [(twin.to_owned(), public.to_string())]);
}

#[test]
fn an_altered_name_leaves_the_original_in_the_title_unless_there_is_one() {
    let mut settings = settings(&["a"]);
    settings.exports[0].rename = vec![(Kind::Tool, "x".into(), "x.y".into())];
    settings.page_items = 9;
    let catalog = Catalog::new(settings);
    let tools = [
        r#"{"name":"b.b","v":1}"#,
        r#"{"name":"c.c","title":"C"}"#,
        r#"{"name":"d.d","annotations":{"title":"D"}}"#,
        r#"{"name":"e","v":1}"#,
        r#"{"name":"x"}"#,
    ];
    let items = tools.map(|text| Item::parse(Kind::Tool, text.into()).expect(text)).to_vec();
    let snapshot = ListSnapshot { items, fresh_until: None, is_private: false, cut: None };
    catalog.publish(&name("a"), Kind::Tool, snapshot);
    let page = catalog.seen(&["*"], &[]).page(Kind::Tool, None, DefinitionForm::Newest);
    let public = |own: &str| Naming::default().join(&name("a"), own);
    let expected = [
        format!(r#"{{"name":"{}","v":1,"title":"b.b"}}"#, public("b.b")),
        format!(r#"{{"name":"{}","title":"C"}}"#, public("c.c")),
        format!(r#"{{"name":"{}","annotations":{{"title":"D"}}}}"#, public("d.d")),
        r#"{"name":"a__e","v":1}"#.to_owned(),
        format!(r#"{{"name":"{}","title":"x.y"}}"#, public("x.y")),
    ];
    assert_eq!(page.items, format!("[{}]", expected.join(",")));
}

#[test]
fn the_first_page_is_measured_by_items_and_by_bytes_and_by_what_a_client_can_use() {
    let keys = ["a", "b", "c", "d", "e"];
    let size = |page_items, page_bytes, form| {
        let catalog = Catalog::new(Settings { page_items, page_bytes, ..settings(&["a"]) });
        catalog.lists("a", Kind::Tool, &keys);
        catalog.seen(&["*"], &[]).first_page_size(Kind::Tool, form)
    };
    for (page_items, page_bytes, expected) in [
        (2, 1_000, (2, 5)),
        (4, 1_000, (4, 5)),
        (5, 1_000, (5, 5)),
        (9, 1_000, (5, 5)),
        // Each item has 21 bytes and a comma.
        (9, 70, (3, 5)),
        (9, 1, (1, 5)),
    ] {
        for form in [DefinitionForm::Newest, DefinitionForm::Older] {
            assert_eq!(size(page_items, page_bytes, form), expected, "{page_items} {page_bytes}");
        }
    }
    let catalog = catalog(&["a"]);
    let view = catalog.seen(&["*"], &[]);
    assert_eq!(view.first_page_size(Kind::Prompt, DefinitionForm::Newest), (0, 0));
}

#[test]
fn an_item_is_shown_under_its_public_name_and_with_every_other_byte() {
    let mut settings = settings(&["a"]);
    settings.exports[0].rename = vec![(Kind::Prompt, "x".into(), "neat".into())];
    let catalog = Catalog::new(settings);
    let publish = |kind, text: &'static str| {
        let items = vec![Item::parse(kind, text.into()).expect(text)];
        catalog.publish(
            &name("a"),
            kind,
            ListSnapshot { items, fresh_until: None, is_private: false, cut: None },
        );
    };
    publish(Kind::Prompt, r#"{"odd":1e400,"name":"x","n":{"name": "x"}}"#);
    publish(Kind::Resource, "{ \"uri\":\n\"a:b\" , \"name\":\"x\" }");
    let view = catalog.seen(&["*"], &[]);
    let prompts = view.page(Kind::Prompt, None, DefinitionForm::Newest).items;
    assert_eq!(prompts, r#"[{"odd":1e400,"name":"a__neat","n":{"name": "x"}}]"#);
    assert_eq!(
        view.page(Kind::Resource, None, DefinitionForm::Newest).items,
        r#"[{ "uri": "a:b" , "name":"x" }]"#
    );
    let target = view.resolve(Kind::Prompt, "a__neat").expect("listed");
    assert_eq!((&*target.own, target.upstream.as_str()), ("x", "a"));
    assert!(view.resolve(Kind::Prompt, "a__x").is_none());
}

#[test]
fn a_page_holds_so_many_items_and_so_many_bytes() {
    let catalog = Catalog::new(Settings { page_bytes: 45, ..settings(&["a"]) });
    catalog.lists("a", Kind::Tool, &["a", "b", "c", &"x".repeat(50)]);
    let view = catalog.seen(&["*"], &[]);
    let mut sizes = Vec::new();
    let mut after = None;
    loop {
        let page = view.page(Kind::Tool, after.as_ref(), DefinitionForm::Newest);
        sizes.push((keys_on(&page, Kind::Tool).len(), page.items.len() <= 45 + 2));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(sizes, [(2, true), (1, true), (1, false)]);
    assert_eq!(view.page(Kind::Prompt, None, DefinitionForm::Newest).items, "[]");
}

#[test]
fn a_page_resumes_after_a_name_and_an_upstream_that_have_since_vanished() {
    let catalog = catalog(&["a", "b", "c"]);
    for upstream in ["a", "b", "c"] {
        catalog.lists(upstream, Kind::Tool, &["1"]);
    }
    let next = catalog
        .seen(&["*"], &[])
        .page(Kind::Tool, None, DefinitionForm::Newest)
        .next
        .expect("more");
    catalog.lists("b", Kind::Tool, &[]);
    let view = catalog.seen(&["*"], &[]);
    assert_eq!(
        keys_on(&view.page(Kind::Tool, Some(&next), DefinitionForm::Newest), Kind::Tool),
        ["c__1"]
    );
    let never = Cursor { upstream: name("aa"), key: "x".into() };
    assert_eq!(
        keys_on(&view.page(Kind::Tool, Some(&never), DefinitionForm::Newest), Kind::Tool),
        ["c__1"]
    );
}

#[test]
fn what_does_not_leave_its_upstream_is_seen_by_nobody() {
    let mut settings = settings(&["a"]);
    settings.exports[0].tools = AllowDeny::new(&["*"], &["get-env"]);
    let catalog = Catalog::new(settings);
    catalog.lists("a", Kind::Tool, &["get-env", "x"]);
    let view = catalog.seen(&["*"], &[]);
    assert_eq!(view.keys(Kind::Tool), ["a__x"]);
    assert!(view.resolve(Kind::Tool, "a__get-env").is_none() && catalog.problems().is_empty());
}

#[test]
fn s28_the_first_of_two_with_one_name_is_kept_and_of_two_that_clash_neither() {
    let mut settings = settings(&["a"]);
    settings.exports[0].rename = vec![(Kind::Tool, "old".into(), "new".into())];
    let catalog = Catalog::new(settings);
    let mut listed = snapshot(Kind::Tool, &["twice", "new", "old", "fine"]);
    listed.items.push(item(Kind::Tool, "twice", 1));
    catalog.publish(&name("a"), Kind::Tool, listed);
    let view = catalog.seen(&["*"], &[]);
    assert_eq!(view.keys(Kind::Tool), ["a__fine", "a__twice"]);
    let twice = view.resolve(Kind::Tool, "a__twice").expect("listed");
    assert_eq!(twice.json, r#"{"name":"a__twice","v":0}"#);

    let problems = catalog.problems();
    let [(upstream, Kind::Tool, problems)] = problems.as_slice() else { panic!("{problems:?}") };
    assert_eq!(upstream.as_str(), "a");
    assert_eq!(
        problems.to_string(),
        r#""new" would be "a__new" like another, rename one of them; "#.to_owned()
            + r#""old" would be "a__new" like another, rename one of them; "#
            + r#""twice" is listed twice, the first one is used"#
    );
    catalog.lists("a", Kind::Tool, &["fine"]);
    assert!(catalog.problems().is_empty());
}

#[test]
fn elements_that_not_every_client_gets_are_named_with_the_reason() {
    let catalog = catalog(&["a"]);
    let mut listed = snapshot(Kind::Tool, &["fine", "twice", "task", "php", "older"]);
    listed.items[2].needs_task = true;
    listed.items[3].add_alterations("`inputSchema` is repaired");
    let older = r#"{"name":"older","outputSchema":{"type":"array"}}"#;
    listed.items[4] = Item::parse(Kind::Tool, older.into()).expect("an item");
    let mut twice = item(Kind::Tool, "twice", 1);
    twice.defect = Some(ItemDefect::Duplicate);
    let bad = Item::parse(Kind::Tool, "7".into()).expect_err("not an object");
    listed.items.extend([twice, Item::unnamed(Kind::Tool, 6, bad)]);
    catalog.publish(&name("a"), Kind::Tool, listed);

    let problems = catalog.problems();
    let [(_, Kind::Tool, problems)] = &problems[..] else { panic!("{problems:?}") };
    let left_out: Vec<_> = problems.left_out(Kind::Tool).collect();
    assert_eq!(
        left_out,
        [
            r#"tool "twice" is listed twice, the first one is used"#,
            "tool number 6 of the list cannot be used: it is not a JSON object",
            r#"tool "task" can be called only as a task, so only clients of 2025-11-25 see it"#,
        ]
    );
    let altered: Vec<_> = problems.altered.lines(Kind::Tool).collect();
    let older =
        "`outputSchema` is left out for clients before 2026-07-28, some of which cannot read it";
    assert_eq!(
        altered,
        [
            format!(r#"tool "older": {older}"#),
            r#"tool "php": `inputSchema` is repaired"#.to_owned()
        ]
    );
    assert_eq!(problems.excluded(), 2);
    assert_eq!(catalog.seen(&["*"], &[]).items(Kind::Tool).len(), 5);
}

#[test]
fn uri_of_two_upstreams_is_named_at_the_one_that_is_later_in_the_file() {
    let catalog = catalog(&["b", "a", "c"]);
    let named = |catalog: &Catalog| {
        let lines = catalog.problems().into_iter().flat_map(|(upstream, kind, problems)| {
            let lines: Vec<_> = problems.left_out(kind).collect();
            lines.into_iter().map(move |line| format!("{upstream}: {line}"))
        });
        lines.collect::<Vec<_>>()
    };
    catalog.lists("a", Kind::Resource, &["r:1", "r:2"]);
    assert!(named(&catalog).is_empty());
    catalog.lists("b", Kind::Resource, &["r:0", "r:2"]);
    let expected = r#"a: resource "r:2" is listed by b, too, which comes first in the file: clients get that one"#;
    assert_eq!(named(&catalog), [expected]);
    catalog.hide(&name("b"), true);
    assert!(named(&catalog).is_empty());
    catalog.hide(&name("b"), false);
    assert_eq!(named(&catalog), [expected]);
    catalog.lists("c", Kind::Template, &["r:{x}"]);
    catalog.lists("a", Kind::Template, &["r:{x}"]);
    assert_eq!(named(&catalog).len(), 2);
    catalog.clear(&name("b"));
    assert_eq!(named(&catalog).len(), 1);
}

#[test]
fn problems_are_counted_beyond_a_number() {
    let catalog = catalog(&["a"]);
    catalog.lists("a", Kind::Tool, &["x"; 2 * ExportProblems::MAX]);
    let (_, _, problems) = catalog.problems().remove(0);
    assert_eq!(
        (problems.unlisted.first.len(), problems.unlisted.more),
        (ExportProblems::MAX, ExportProblems::MAX - 1)
    );
}

#[test]
fn an_unchanged_item_stays_the_same_in_memory_and_shares_none_with_its_message() {
    let catalog = catalog(&["a"]);
    catalog.lists("a", Kind::Resource, &["r:1", "r:2"]);
    let before = catalog.seen(&["*"], &[]).resolve(Kind::Resource, "r:1").expect("listed");
    let message = Bytes::from(format!("{}{}", r#"{"uri":"r:1","v":0}"#, " ".repeat(1_000)));
    let items = vec![Item::parse(Kind::Resource, message.slice(..19)).expect("an item")];
    catalog.publish(
        &name("a"),
        Kind::Resource,
        ListSnapshot { items, fresh_until: None, is_private: false, cut: None },
    );
    assert!(message.is_unique());
    let after = catalog.seen(&["*"], &[]).resolve(Kind::Resource, "r:1").expect("listed");
    assert!(Arc::ptr_eq(&before, &after));
}

#[test]
fn the_first_upstream_in_the_file_that_is_visible_keeps_a_uri() {
    let catalog = catalog(&["z", "a"]);
    catalog.lists("z", Kind::Resource, &["r:1", "r:z"]);
    catalog.lists("a", Kind::Resource, &["r:1", "r:a"]);
    let all = catalog.seen(&["*"], &[]);
    assert_eq!(all.keys(Kind::Resource), ["r:a", "r:1", "r:z"]);
    assert_eq!(all.owner("r:1").as_deref(), Some("z"));
    let without = catalog.seen(&["*"], &["z/*"]);
    assert_eq!(without.keys(Kind::Resource), ["r:1", "r:a"]);
    assert_eq!(without.owner("r:1").as_deref(), Some("a"));
}

#[test]
fn a_uri_that_is_not_listed_goes_by_template_and_then_by_origin() {
    let catalog = catalog(&["a", "b", "c"]);
    catalog.lists("a", Kind::Template, &["note:///{id}", "wiki://h/{page}"]);
    catalog.lists("b", Kind::Template, &["wiki://h/{page}/x", "wiki://h/{name}", "note:///{id}"]);
    catalog.lists("b", Kind::Resource, &["https://b/1"]);
    catalog.lists("c", Kind::Resource, &["https://c/1", "urn:c"]);
    let view = catalog.seen(&["*"], &["c/https://c/secret/*"]);
    for (uri, owner) in [
        // Both list this very template: it is the first one's, as a URI would be.
        ("note:///7", Some("a")),
        ("wiki://h/p", None),
        ("wiki://h/p/x", Some("b")),
        ("wiki://h/p/q/r", None),
        ("https://b/2/3", Some("b")),
        ("https://c/2", Some("c")),
        ("https://c/secret/2", None),
        ("https://c/2/../secret/2", None),
        ("https://d/1", None),
        ("urn:d", Some("c")),
        ("no uri", None),
    ] {
        assert_eq!(view.owner(uri).as_deref(), owner, "{uri}");
    }
    // To who does not see b, a's template is the only one; and hidden templates lead nowhere.
    let without_b = catalog.seen(&["*"], &["b/*"]);
    assert_eq!(without_b.owner("wiki://h/p").as_deref(), Some("a"));
    assert_eq!(without_b.owner("https://b/1"), None);
    assert_eq!(view.owner(&format!("https://b/{}", "x".repeat(2_048))), None);
    let target = view.resolve_uri("https://b/2").expect("by origin");
    assert_eq!(
        (&*target.own, &*target.key, target.kind),
        ("https://b/2", "https://b/2", Kind::Resource)
    );
    assert!(view.resolve(Kind::Template, "note:///{id}").is_some());
}

#[test]
fn the_rules_of_an_upstream_hold_for_uris_that_are_not_listed() {
    let mut settings = settings(&["a"]);
    settings.exports[0].resources = AllowDeny::new(&["r://a/*"], &["r://a/secret*"]);
    let catalog = Catalog::new(settings);
    catalog.lists("a", Kind::Template, &["r://a/{+any}"]);
    let view = catalog.seen(&["*"], &[]);
    assert_eq!(view.owner("r://a/x").as_deref(), Some("a"));
    assert_eq!(view.owner("r://a/secret/x"), None);
}

#[test]
fn one_upstreams_outrageous_templates_cost_the_others_nothing() {
    let catalog = catalog(&["a", "b"]);
    let bad: Vec<String> = (0..50).map(|n| format!("r:/{}{n}", "{+x}a".repeat(300))).collect();
    catalog.lists("a", Kind::Template, &bad.iter().map(String::as_str).collect::<Vec<_>>());
    catalog.lists("b", Kind::Template, &["r:/{+x}"]);
    let uri = format!("r:/{}", "a".repeat(1_500));
    assert_eq!(catalog.seen(&["*"], &[]).owner(&uri).as_deref(), Some("b"));
}

#[test]
fn a_list_names_the_upstreams_within_reach_that_were_never_listed() {
    let catalog = catalog(&["c", "b", "a"]);
    catalog.lists("b", Kind::Tool, &[]);
    let mut all = catalog.view("all", &sees(&["*"], &[]));
    let some = catalog.view("some", &sees(&["a/*", "b/*"], &[]));
    assert_eq!(
        all.borrow().page(Kind::Tool, None, DefinitionForm::Newest).partial,
        [name("a"), name("c")]
    );
    assert_eq!(all.borrow_and_update().missing(Kind::Prompt), [name("a"), name("b"), name("c")]);
    assert_eq!(some.borrow().missing(Kind::Tool), [name("a")]);
    let before = all.borrow().clone();
    catalog.lists("c", Kind::Tool, &[]);
    assert!(all.has_changed().expect("open") && !some.has_changed().expect("open"));
    assert!(!all.borrow().differs(&before, ListTopic::Tools, DefinitionForm::Newest));
}

#[tokio::test(start_paused = true)]
async fn a_list_is_fresh_as_long_as_the_first_to_expire_and_that_wakes_nobody() {
    let catalog = catalog(&["a", "b", "c"]);
    let mut all = catalog.view("all", &sees(&["a/*", "b/*"], &[]));
    let publish = |upstream: &str, seconds| {
        let fresh_until = Some(Instant::now() + Duration::from_secs(seconds));
        catalog.publish(
            &name(upstream),
            Kind::Tool,
            ListSnapshot { items: Vec::new(), fresh_until, is_private: false, cut: None },
        );
    };
    for (upstream, seconds) in [("a", 20), ("b", 30), ("c", 1)] {
        publish(upstream, seconds);
    }
    let fresh_for = |all: &watch::Receiver<Arc<RoleView>>| {
        all.borrow().page(Kind::Tool, None, DefinitionForm::Newest).fresh_for
    };
    assert_eq!(fresh_for(&all), Some(Duration::from_secs(20)));
    all.mark_unchanged();
    publish("a", 40);
    assert_eq!(fresh_for(&all), Some(Duration::from_secs(30)));
    assert!(!all.has_changed().expect("open"));
    tokio::time::advance(Duration::from_secs(31)).await;
    assert_eq!(fresh_for(&all), Some(Duration::ZERO));
    assert_eq!(all.borrow().page(Kind::Prompt, None, DefinitionForm::Newest).fresh_for, None);
}

#[test]
fn who_comes_later_has_seen_the_present_view() {
    let catalog = catalog(&["a"]);
    let first = catalog.view("all", &sees(&["*"], &[]));
    catalog.lists("a", Kind::Tool, &["x"]);
    let second = catalog.view("all", &sees(&["*"], &[]));
    assert!(first.has_changed().expect("open") && !second.has_changed().expect("open"));
    assert!(Arc::ptr_eq(&first.borrow(), &second.borrow()));
}

#[test]
fn roles_that_see_the_same_by_different_rules_share_their_tables() {
    let catalog = catalog(&["a"]);
    catalog.lists("a", Kind::Tool, &["x", "y", "z"]);
    let view = |n: usize| catalog.view(&format!("{n}"), &sees(&["*"], &["a/z", &format!("{n}")]));
    let all: Vec<_> = (0..1_000).map(view).collect();
    let other = catalog.view("other", &sees(&["*"], &[]));
    let share = || {
        let table = |view: &Arc<RoleView>| Arc::clone(&view.tables[Kind::Tool.index()]);
        let first = table(&all[0].borrow());
        assert!(all.iter().all(|view| Arc::ptr_eq(&table(&view.borrow()), &first)));
        assert!(!Arc::ptr_eq(&table(&other.borrow()), &first));
        all[999].borrow().keys(Kind::Tool)
    };
    assert_eq!(share(), ["a__x", "a__y"]);
    // And after each change.
    catalog.lists("a", Kind::Tool, &["w", "x", "z"]);
    assert_eq!(share(), ["a__w", "a__x"]);
    let writer = catalog.lock_writer();
    let in_use = &writer.tables[Kind::Tool.index()];
    assert!(in_use.len() < 10, "{} tables are remembered", in_use.len());
}

#[test]
fn a_publish_reaches_a_view_that_nobody_watches() {
    let catalog = catalog(&["a"]);
    drop(catalog.view("all", &sees(&["*"], &[])));
    catalog.lists("a", Kind::Tool, &["x"]);
    catalog.lists("unknown", Kind::Tool, &["x"]);
    assert_eq!(catalog.view("all", &sees(&["*"], &[])).borrow().keys(Kind::Tool), ["a__x"]);
}

#[test]
fn plain_names_keep_the_order_by_upstream() {
    let catalog = Catalog::new(Settings {
        naming: Naming::new(None, Characters::Any, 128),
        ..settings(&["b", "a"])
    });
    catalog.lists("a", Kind::Prompt, &["z", "same"]);
    catalog.lists("b", Kind::Prompt, &["y", "same"]);
    let view = catalog.seen(&["*"], &[]);
    // Plain names are for one upstream; with more, a name is the first one's as a URI would be.
    assert_eq!(view.keys(Kind::Prompt), ["z", "same", "y"]);
    assert_eq!(view.resolve(Kind::Prompt, "same").expect("listed").upstream.as_str(), "b");
}
