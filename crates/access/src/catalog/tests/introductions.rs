//! Tests of capabilities and instructions of upstreams in a view, and of items that not every
//! client can use.

use super::*;
use weir_base::json::Object;
use weir_mcp::definition::item::{Item, ItemDefect};
use weir_mcp::definition::param_headers::InvalidHeaderAnnotation;

impl Catalog {
    fn says(&self, upstream: &str, capabilities: &str, instructions: &str) {
        let declared = Object::parse(capabilities.to_owned()).expect("an object");
        let info = UpstreamInfo {
            capabilities: Capabilities::read(&declared),
            instructions: Some(instructions).filter(|text| !text.is_empty()).map(Arc::from),
        };
        self.set_upstream_info(&name(upstream), info);
    }
}

fn extensions(view: &RoleView) -> Option<Bytes> {
    view.capabilities().extensions.to_object().map(|object| object.to_bytes())
}

#[test]
fn who_can_see_a_prompt_or_a_template_of_a_completing_upstream_has_completions() {
    let catalog = catalog(&["a", "b"]);
    catalog.lists("a", Kind::Tool, &["x"]);
    catalog.lists("b", Kind::Prompt, &["x"]);
    let mut all = catalog.view("all", &sees(&["*"], &[]));
    let completes = |view: &RoleView| view.capabilities().completions;
    catalog.says("a", r#"{"completions":{}}"#, "");
    assert!(!completes(&all.borrow()) && !all.has_changed().expect("open"));
    catalog.says("b", r#"{"completions":{}}"#, "");
    assert!(all.has_changed().expect("open") && completes(&all.borrow_and_update()));
    catalog.says("b", r#"{"completions":{}}"#, "");
    assert!(!all.has_changed().expect("open"), "the same said again");
    assert!(!completes(&catalog.seen(&["a/*"], &[])));
    catalog.lists("b", Kind::Prompt, &[]);
    assert!(!completes(&all.borrow()));
}

#[test]
fn a_view_can_do_what_the_upstreams_can_that_it_shows() {
    let catalog = catalog(&["b", "a", "c"]);
    catalog.says("a", r#"{"extensions":{"x/1":{"of":"a"},"x/2":{}}}"#, "");
    catalog.says(
        "b",
        r#"{"extensions":{"x/1":{"of":"b"},"io.modelcontextprotocol/tasks":{}}}"#,
        "",
    );
    catalog.says("c", r#"{"extensions":{"x/3":{}},"experimental":{"e":{}}}"#, "");
    assert_eq!(extensions(&catalog.seen(&["*"], &[])), None, "nothing is listed");
    catalog.lists("a", Kind::Tool, &["x", "y"]);
    catalog.lists("b", Kind::Resource, &["r:1"]);
    // The first upstream in the file has precedence.
    let both = r#"{"x/1":{"of":"b"},"io.modelcontextprotocol/tasks":{},"x/2":{}}"#;
    assert_eq!(extensions(&catalog.seen(&["*"], &[])).expect("some"), both);
    let a = r#"{"x/1":{"of":"a"},"x/2":{}}"#;
    assert_eq!(extensions(&catalog.seen(&["a/y", "c/*"], &[])).expect("some"), a);
    assert_eq!(extensions(&catalog.seen(&["a/z"], &[])), None);
    assert_eq!(catalog.seen(&["*"], &[]).capabilities().experimental.to_object(), None);
    catalog.lists("c", Kind::Prompt, &["p"]);
    assert!(catalog.seen(&["*"], &[]).capabilities().experimental.to_object().is_some());
}

#[test]
fn instructions_stand_under_the_names_of_the_upstreams_that_are_shown() {
    let catalog = catalog(&["zoo", "a", "mute", "hidden"]);
    for upstream in ["zoo", "a", "hidden"] {
        catalog.says(upstream, "{}", &format!("Use {upstream} well.\n# b"));
    }
    catalog.lists("mute", Kind::Tool, &["x"]);
    catalog.lists("zoo", Kind::Tool, &["x"]);
    catalog.lists("a", Kind::Resource, &["r:1"]);
    catalog.lists("hidden", Kind::Tool, &["x"]);
    let view = catalog.seen(&["*"], &["hidden/*"]);
    let expected = "# zoo\n\n(The names of its prompts and tools begin with `zoo__` here.)\n\nUse zoo well.\n# b\n\n# a\n\nUse a well.\n# b";
    assert_eq!(view.instructions(), Some(expected));
    assert_eq!(catalog.seen(&["mute/*"], &[]).instructions(), None);
}

#[test]
fn instructions_of_the_only_upstream_stand_alone_and_can_be_off() {
    let check = |naming, instructions, expected| {
        let settings = Settings { naming, instructions, ..settings(&["a"]) };
        let catalog = Catalog::new(settings);
        catalog.says("a", "{}", "words");
        catalog.lists("a", Kind::Tool, &["x"]);
        assert_eq!(catalog.seen(&["*"], &[]).instructions(), expected);
    };
    check(Naming::new(None, Characters::Any, 128), true, Some("words"));
    check(Naming::new(None, Characters::Any, 128), false, None);
    check(Naming::default(), false, None);
}

#[test]
fn instructions_that_do_not_fit_are_left_out_whole_and_named() {
    let names = ["a", "b", "c", "d", "e"];
    let catalog = catalog(&names);
    for upstream in names {
        // One that is short still fits behind one that does not.
        let length = if upstream == "e" { 10 } else { 10 * 1024 };
        catalog.says(upstream, "{}", &upstream.repeat(length));
        catalog.lists(upstream, Kind::Tool, &["x"]);
    }
    let view = catalog.seen(&["*"], &[]);
    let text = view.instructions().expect("instructions");
    assert!(
        text.ends_with("\n\neeeeeeeeee\n\n[left out for their length: d]"),
        "{}",
        &text[text.len() - 90..]
    );
    assert!(text.len() < super::super::instructions::MAX_BYTES + 100);
    assert_eq!(text.matches("\n\n# ").count(), 3);
}

#[test]
fn older_clients_get_what_they_can_take() {
    let catalog = catalog(&["a"]);
    let odd = r#"{"name":"odd","outputSchema":{"type":"array"},"v":1.0}"#;
    let items = [odd, r#"{"name":"plain","outputSchema":{"type":"object"}}"#]
        .map(|text| Item::parse(Kind::Tool, text.into()).expect("an item"));
    let snapshot =
        ListSnapshot { items: items.to_vec(), fresh_until: None, is_private: false, cut: None };
    catalog.publish(&name("a"), Kind::Tool, snapshot.clone());
    let mut all = catalog.view("all", &sees(&["*"], &[]));
    let page = |form| all.borrow().page(Kind::Tool, None, form).items;
    let plain = r#"{"name":"a__plain","outputSchema":{"type":"object"}}"#;
    let newest = r#"{"name":"a__odd","outputSchema":{"type":"array"},"v":1.0}"#;
    assert_eq!(page(DefinitionForm::Newest), format!("[{newest},{plain}]"));
    assert_eq!(page(DefinitionForm::Older), format!(r#"[{{"name":"a__odd","v":1.0}},{plain}]"#));
    let before = all.borrow_and_update().items(Kind::Tool).to_vec();
    catalog.publish(&name("a"), Kind::Tool, snapshot);
    let view = all.borrow_and_update();
    let same = before.iter().zip(view.items(Kind::Tool)).all(|(old, new)| Arc::ptr_eq(old, new));
    assert!(same, "nothing is rendered again");
}

#[test]
fn tools_that_need_a_task_are_on_the_pages_of_those_who_can_begin_one() {
    let catalog = catalog(&["a"]);
    let publish = |keys: &[&str]| {
        let mut items: Vec<_> = keys.iter().map(|key| item(Kind::Tool, key, 0)).collect();
        for item in items.iter_mut().filter(|item| item.key.starts_with('t')) {
            item.needs_task = true;
        }
        let snapshot = ListSnapshot { items, fresh_until: None, is_private: false, cut: None };
        catalog.publish(&name("a"), Kind::Tool, snapshot);
    };
    publish(&["b", "t1", "t2", "t3", "u", "v", "t9"]);
    let view = catalog.seen(&["*"], &[]);
    let pages = |form| {
        let (mut counts, mut after) = (Vec::new(), None);
        loop {
            let page = view.page(Kind::Tool, after.as_ref(), form);
            counts.push(super::keys_on(&page, Kind::Tool).len());
            after = page.next;
            if after.is_none() {
                return counts;
            }
        }
    };
    assert_eq!(pages(DefinitionForm::WithTasks), [2, 2, 2, 1]);
    assert_eq!(
        (pages(DefinitionForm::Newest), pages(DefinitionForm::Older)),
        (vec![2, 1], vec![2, 1])
    );
    let target = |key| view.resolve(Kind::Tool, key).expect("a tool");
    assert!(
        target("a__t1").is_for(DefinitionForm::WithTasks)
            && !target("a__t1").is_for(DefinitionForm::Newest)
    );
    assert!(
        target("a__u").is_for(DefinitionForm::Older)
            && !target("a__t9").is_for(DefinitionForm::Older)
    );

    publish(&["b", "u", "v"]);
    let now = catalog.seen(&["*"], &[]);
    assert!(now.differs(&view, ListTopic::Tools, DefinitionForm::WithTasks));
    assert!(!now.differs(&view, ListTopic::Tools, DefinitionForm::Newest));
}

#[test]
fn what_nobody_can_use_is_reported_and_not_listed() {
    let catalog = catalog(&["a"]);
    let mut items = vec![item(Kind::Tool, "x", 0), item(Kind::Tool, "y", 0)];
    items[0].defect = Some(ItemDefect::HeaderAnnotation(InvalidHeaderAnnotation::Duplicate));
    catalog.publish(
        &name("a"),
        Kind::Tool,
        ListSnapshot { items, fresh_until: None, is_private: false, cut: None },
    );
    assert_eq!(catalog.seen(&["*"], &[]).keys(Kind::Tool), ["a__y"]);
    let [(_, Kind::Tool, problems)] = &catalog.problems()[..] else { panic!("one list") };
    let expected = "\"x\" cannot be used: `x-mcp-header` names a header twice";
    assert_eq!(problems.to_string(), expected);
}

#[test]
fn a_list_is_private_where_one_of_its_upstreams_says_so() {
    let catalog = catalog(&["a", "b"]);
    let publish = |upstream: &str, is_private| {
        let items = vec![item(Kind::Tool, "x", 0)];
        let snapshot = ListSnapshot { items, fresh_until: None, is_private, cut: None };
        catalog.publish(&name(upstream), Kind::Tool, snapshot);
    };
    publish("a", false);
    publish("b", true);
    let is_private = |allow: &str, kind| {
        catalog.seen(&[allow], &[]).page(kind, None, DefinitionForm::Newest).is_private
    };
    assert!(is_private("*", Kind::Tool) && is_private("b/*", Kind::Tool));
    assert!(!is_private("a/*", Kind::Tool) && !is_private("*", Kind::Prompt));
    publish("b", false);
    assert!(!is_private("*", Kind::Tool));
}

#[test]
fn a_tool_carries_which_arguments_go_into_headers() {
    let catalog = catalog(&["a"]);
    let schema = |mark: &str| {
        let text = format!(
            r#"{{"name":"t","inputSchema":{{"properties":{{"a":{{"type":"string"{mark}}}}}}}}}"#
        );
        let items = vec![Item::parse(Kind::Tool, text.into()).expect("an item")];
        let snapshot = ListSnapshot { items, fresh_until: None, is_private: false, cut: None };
        catalog.publish(&name("a"), Kind::Tool, snapshot);
        catalog
            .seen(&["*"], &[])
            .resolve(Kind::Tool, "a__t")
            .expect("the tool")
            .param_headers
            .is_some()
    };
    assert!(schema(r#","x-mcp-header":"A""#));
    assert!(!schema(""));
    // Only a server that is spoken to in headers has to have good ones.
    assert!(!schema(r#","x-mcp-header":"A B""#));
}
