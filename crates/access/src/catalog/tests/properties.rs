//! Property tests of the catalog against a model without tables.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// The upstreams, in the order of the file.
const UPSTREAMS: [&str; 3] = ["b", "c", "a"];

/// The roles: allowed and denied patterns.
type Role = (Vec<String>, Vec<String>);

/// One upstream's list: keys with versions.
type List = BTreeMap<String, u8>;

/// The lists of all upstreams of one kind, in the order of the file; `None` if there is none yet.
#[derive(Default, Clone)]
struct Model([Option<List>; 3]);

/// (upstream, own key) → version.
type Visible = BTreeMap<(&'static str, String), u8>;

impl Model {
    /// The items that a role sees: the first upstream in the file that lists a URI owns it.
    fn visible(&self, kind: Kind, filter: &Arc<dyn Filter>) -> Visible {
        let (mut visible, mut taken) = (Visible::new(), BTreeSet::new());
        for (upstream, list) in UPSTREAMS.into_iter().zip(&self.0) {
            for (key, version) in list.iter().flatten() {
                if filter.reaches(&name(upstream))
                    && filter.allows(kind, &name(upstream), key)
                    && (kind.has_name() || taken.insert(key.clone()))
                {
                    visible.insert((upstream, key.clone()), *version);
                }
            }
        }
        visible
    }

    /// The upstreams that a role reaches and that have no list.
    fn missing(&self, filter: &Arc<dyn Filter>) -> Vec<&'static str> {
        let unknown = UPSTREAMS.into_iter().zip(&self.0).filter(|(_, list)| list.is_none());
        unknown.map(|(upstream, _)| upstream).filter(|it| filter.reaches(&name(it))).collect()
    }

    fn publish(&mut self, catalog: &Catalog, kind: Kind, at: usize, list: List) {
        let items = list.iter().map(|(key, version)| item(kind, key, *version)).collect();
        catalog.publish(
            &name(UPSTREAMS[at]),
            kind,
            ListSnapshot { items, fresh_until: None, is_private: false, cut: None },
        );
        self.0[at] = Some(list);
    }
}

fn lists() -> impl Strategy<Value = List> {
    prop::collection::btree_map("[a-d]:[a-b]?", 0..2_u8, 0..6)
}

fn roles() -> impl Strategy<Value = Role> {
    let pattern = || prop_oneof!["[abc]/\\*", "[abc]/[a-d]\\*", Just("*".to_owned()), "\\*[a-d]:"];
    let patterns = move |most| prop::collection::vec(pattern(), 0..most);
    (patterns(4), patterns(2))
}

fn filter((allow, deny): &Role) -> Arc<dyn Filter> {
    Arc::new(Sees(AllowDeny::new(allow, deny)))
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop::sample::select(Kind::ALL.to_vec())
}

fn upstreams() -> std::ops::Range<usize> {
    0..UPSTREAMS.len()
}

/// Reads the items of a page back as (upstream, own key).
fn on_page(view: &RoleView, page: &CatalogPage, kind: Kind) -> Vec<(String, String)> {
    let owned = |key: String| {
        let target = view.resolve(kind, &key).expect("what is listed is reachable");
        (target.upstream.to_string(), target.own.to_string())
    };
    keys_on(page, kind).into_iter().map(owned).collect()
}

proptest! {
    #[test]
    fn a_walk_returns_every_item_that_stays_visible_exactly_once(
        kind in kinds(),
        first in prop::array::uniform3(lists()),
        roles in prop::collection::vec(roles(), 1..3),
        page_items in 1..4_usize,
        // Before each page: the lists to publish, and the role that requests the page.
        steps in prop::collection::vec(
            (prop::collection::vec((upstreams(), lists()), 0..3), any::<prop::sample::Index>()),
            0..12,
        ),
    ) {
        // Names of these characters keep their order.
        let naming = Naming::new(Some("__"), Characters::Any, 64);
        let catalog = Catalog::new(Settings { page_items, naming, ..settings(&UPSTREAMS) });
        let mut model = Model::default();
        for (at, list) in first.into_iter().enumerate() {
            model.publish(&catalog, kind, at, list);
        }
        let filters: Vec<_> = roles.iter().map(filter).collect();
        let mut steps = steps.into_iter();
        let mut role = 0;
        let (mut walked, mut throughout) = (Vec::new(), None::<BTreeSet<(String, String)>>);
        let mut cursor: Option<String> = None;
        loop {
            if let Some((publishes, index)) = steps.next() {
                for (at, list) in publishes {
                    model.publish(&catalog, kind, at, list);
                }
                role = index.index(filters.len());
            }
            let view = catalog.view(&role.to_string(), &filters[role]).borrow().clone();
            let visible = model.visible(kind, &filters[role]).into_keys();
            let visible: BTreeSet<_> =
                visible.map(|(upstream, key)| (upstream.to_owned(), key)).collect();
            throughout = Some(throughout.map_or(visible.clone(), |before| &before & &visible));

            let after = cursor.map(|text| Cursor::parse(&text, kind).expect("an own cursor"));
            let page = view.page(kind, after.as_ref(), DefinitionForm::Newest);
            let found = on_page(&view, &page, kind);
            prop_assert!(found.iter().all(|item| visible.contains(item)));
            walked.extend(found);
            cursor = page.next.map(|next| next.encode(kind));
            if cursor.is_none() {
                break;
            }
        }
        let once: BTreeSet<_> = walked.iter().cloned().collect();
        prop_assert_eq!(once.len(), walked.len(), "something twice in {:?}", walked);
        prop_assert!(once.is_superset(&throughout.unwrap_or_default()));
        prop_assert!(walked.is_sorted());
    }

    #[test]
    fn listed_is_what_is_reachable(
        kind in kinds(),
        lists in prop::array::uniform3(lists()),
        role in roles(),
    ) {
        let catalog = catalog(&UPSTREAMS);
        let mut model = Model::default();
        for (at, list) in lists.iter().enumerate() {
            model.publish(&catalog, kind, at, list.clone());
        }
        let filter = filter(&role);
        let view = catalog.view("role", &filter).borrow().clone();
        let listed: BTreeSet<_> = view.keys(kind).into_iter().collect();
        prop_assert_eq!(listed.len(), model.visible(kind, &filter).len());
        for (upstream, list) in UPSTREAMS.into_iter().zip(&lists) {
            for own in list.keys() {
                let key = match kind.has_name() {
                    true => Naming::default().join(&name(upstream), own),
                    false => own.clone(),
                };
                prop_assert_eq!(view.resolve(kind, &key).is_some(), listed.contains(&key));
                // The upstream's own name is not a public one.
                prop_assert_eq!(view.resolve(kind, own).is_some(), listed.contains(own));
                if kind != Kind::Resource {
                    continue;
                }
                let found = view.resolve_uri(own);
                if listed.contains(own) {
                    prop_assert_eq!(found, view.resolve(kind, own));
                } else if let Some(found) = found {
                    prop_assert!(filter.allows(kind, &found.upstream, own));
                }
            }
        }
    }

    #[test]
    fn listed_resource_is_reached_by_each_spelling_that_clients_derive_from_it(
        own in "(file|https|db|note|FILE)://(Host)?/[a-cA-C .~é|'()+-]{0,8}(/[a-c0-9 %]{1,5}){0,2}[?]?[a-c=é ]{0,4}",
    ) {
        // Parsers remove spaces at the end, so such a URI is not listed.
        let own = own.trim_end_matches(' ').to_owned();
        let catalog = catalog(&UPSTREAMS);
        catalog.lists("a", Kind::Resource, &[&own]);
        // Other upstreams with the same origin do not make it ambiguous.
        catalog.lists("b", Kind::Template, &["file:///{+path}", "https://host/{+path}"]);
        let view = catalog.seen(&["*"], &[]);
        let listed = view.resolve(Kind::Resource, &own).expect("listed");
        let parsed = url::Url::parse(&own).map(String::from);
        let lower_case = |uri: &str| {
            let mut parts = uri.split('%');
            let first = parts.next().unwrap_or_default().to_owned();
            parts.fold(first, |all, part| match part.get(..2) {
                Some(digits) if digits.bytes().all(|it| it.is_ascii_hexdigit()) => {
                    format!("{all}%{}{}", digits.to_ascii_lowercase(), &part[2..])
                }
                _ => format!("{all}%{part}"),
            })
        };
        // What a client has parsed and written, also with `encodeURI` of JavaScript.
        let encoded: String = own.chars().fold(String::new(), |mut all, letter| {
            match letter.is_ascii_alphanumeric() || "-_.!~*'();/?:@&=+$,#".contains(letter) {
                true => all.push(letter),
                false => letter.to_string().bytes().for_each(|it| all += &format!("%{it:02X}")),
            }
            all
        });
        let spellings = [Some(own.clone()), parsed.clone().ok(), parsed.ok().as_deref().map(lower_case)];
        for spelling in spellings.into_iter().flatten() {
            let found = view.resolve_uri(&spelling);
            prop_assert_eq!(found.as_ref(), Some(&listed), "{} for {}", spelling, own);
        }
        // WHATWG's parsers read `/a|` of a file URL as the letter of a drive, and `/a%7C` as none.
        let is_file = own.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("file:"));
        let is_drive = is_file && own.contains('|');
        // An escape is an escape for `encodeURI`, too, so this is another URI.
        if url::Url::parse(&own).is_ok() && !has_escape(&own) && !is_drive {
            let found = view.resolve_uri(&encoded);
            prop_assert_eq!(found.as_ref(), Some(&listed), "{} for {}", encoded, own);
        }
    }

    #[test]
    fn listed_template_is_reached_by_its_expansions(
        scheme in "file|https|db|note",
        literal in "[a-c é|~]{1,5}",
        expression in prop::sample::select(vec!["{v}", "{+v}", "{v:3}", "{v*}", "x{?v}", "x{?q,v}", "{.v}", "x{#v}", "{v}{&q}"]),
        value in "[a-zA-Z0-9_~é😀!()-]{1,12}",
    ) {
        let template = format!("{scheme}://{}/{}/{expression}", if scheme == "file" { "" } else { "h" }, literal.trim());
        prop_assume!(!literal.trim().is_empty() && template::is_usable(&template));
        let catalog = catalog(&UPSTREAMS);
        catalog.lists("a", Kind::Template, &[&template]);
        let uri = expansion::expand(&template, |_| expansion::VariableValue::Queried(&value));
        let uri = uri.expect("a variable").uri;
        // Some text has no normal form, which docs/resource-uris.md says.
        prop_assume!(CanonicalUri::parse(&uri).is_ok());
        let owner = catalog.seen(&["*"], &[]).owner(&uri);
        prop_assert_eq!(owner.as_deref(), Some("a"), "{} of {}", uri, template);
        let route = catalog.seen(&["*"], &[]).route(&uri);
        prop_assert!(matches!(route, UriRoute::Template(_)), "{} of {}: {:?}", uri, template, route);
    }

    #[test]
    fn a_view_changes_exactly_when_something_its_role_can_see_has_changed(
        kind in kinds(),
        roles in prop::collection::vec(roles(), 1..4),
        publishes in prop::collection::vec((upstreams(), lists()), 1..10),
    ) {
        let catalog = catalog(&UPSTREAMS);
        let mut model = Model::default();
        let filters: Vec<_> = roles.iter().map(filter).collect();
        let in_use = |(n, filter): (usize, &Arc<dyn Filter>)| catalog.view(&n.to_string(), filter);
        let mut views: Vec<_> = filters.iter().enumerate().map(in_use).collect();
        let present = |view: &mut watch::Receiver<Arc<RoleView>>| view.borrow_and_update().clone();
        let mut olds: Vec<_> = views.iter_mut().map(present).collect();
        for (at, list) in publishes {
            let before = model.clone();
            model.publish(&catalog, kind, at, list);
            for ((filter, view), old) in filters.iter().zip(&mut views).zip(&mut olds) {
                let differs = before.visible(kind, filter) != model.visible(kind, filter);
                let changes = differs || before.missing(filter) != model.missing(filter);
                prop_assert_eq!(view.has_changed().expect("open"), changes);
                let new = present(view);
                for topic in ListTopic::ALL {
                    prop_assert_eq!(new.differs(old, topic, DefinitionForm::Newest), differs && topic == kind.topic());
                }
                *old = new;
            }
        }
    }
}

fn has_escape(uri: &str) -> bool {
    let is_escape = |part: &str| part.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    uri.split('%').skip(1).any(is_escape)
}
