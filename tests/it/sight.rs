//! Visibility: the listed, the reachable and the announced items are the same, for generated roles
//! and catalogs, in every revision over every transport (S-02, S-03, D-P3).
//!
//! A second matcher decides here what a role may see. It shares only the rule with Weir's own: an
//! item that no pattern allows is denied, and a denial wins.

use weir_mcp::kind::Kind;
use weir_mcp::revision::Revision;

use crate::by_night;
use crate::cell::{LEGACY_HTTP, LEGACY_SSE, MODERN_HTTP, Side, Transport};
use crate::client::Client;
use crate::sim::{Dice, first_seed};
use crate::upstream::Script;
use crate::world::{World, pass, with_pair};

/// Number of (client, item, request) cases, by day and nightly.
const CASES: usize = 12_500;
const NIGHTLY_CASES: usize = 1_000_000;

/// Names of items; each upstream has some of them.
const NAMES: [&str; 5] = ["a", "b", "ab", "ba", "a/b"];
const UPSTREAMS: [(&str, Side); 2] = [("hub", MODERN_HTTP), ("rim", LEGACY_HTTP)];

/// All revisions, over all their transports.
fn sides() -> impl Iterator<Item = Side> {
    let wires = [Transport::Http, Transport::Stdio];
    let all = Revision::ALL.into_iter();
    all.flat_map(move |revision| wires.map(|transport| Side::new(revision, transport)))
        .chain([Side::new(Revision::V2024_11_05, Transport::Sse), LEGACY_SSE])
}

/// A pattern of a rule for this kind.
fn pattern(dice: &mut Dice, kind: Kind) -> String {
    let upstream = dice.one_of(&["hub", "rim", "*", "*", "h*", "nobody"]);
    let rest = match kind {
        Kind::Prompt | Kind::Tool => dice.one_of(&["*", "a", "a*", "*b", "b", "*/*", "a*b"]),
        Kind::Resource | Kind::Template => dice.one_of(&[
            "*",
            "*:///*",
            "*-file:///a*",
            "hub-file:///b",
            "*-a:///*",
            "*-ab:///{path}",
            "rim-*",
            "*b",
            "*/q",
        ]),
    };
    format!("{upstream}/{rest}")
}

/// Patterns that a role allows and denies, for each kind that has rules.
#[derive(Debug, Default)]
struct Role {
    rules: [(Vec<String>, Vec<String>); 3],
}

const RULED: [(Kind, &str); 3] =
    [(Kind::Prompt, "prompts"), (Kind::Tool, "tools"), (Kind::Resource, "resources")];

impl Role {
    fn roll(dice: &mut Dice) -> Self {
        let rules = RULED.map(|(kind, _)| {
            let mut some = |most: usize| {
                let count = dice.index(most + 1);
                (0..count).map(|_| pattern(dice, kind)).collect()
            };
            (some(3), some(2))
        });
        Self { rules }
    }

    fn written(&self, name: &str) -> String {
        let rules = RULED.iter().zip(&self.rules).map(|((_, key), (allow, deny))| {
            format!("{key} = {{ allow = {allow:?}, deny = {deny:?} }}\n")
        });
        format!("[roles.{name}]\n{}", rules.collect::<String>())
    }

    fn allows(&self, kind: Kind, upstream: &str, own: &str) -> bool {
        let index = match kind {
            Kind::Prompt => 0,
            Kind::Tool => 1,
            Kind::Resource | Kind::Template => 2,
        };
        let (allow, deny) = &self.rules[index];
        let subject = format!("{upstream}/{own}");
        let any = |patterns: &[String]| {
            patterns.iter().any(|it| matches(it.as_bytes(), subject.as_bytes()))
        };
        any(allow) && !any(deny)
    }
}

/// Whether a pattern matches, tried in every way.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'*', rest @ ..] => (0..=text.len()).any(|skipped| matches(rest, &text[skipped..])),
        [byte, rest @ ..] => text.first() == Some(byte) && matches(rest, &text[1..]),
    }
}

/// An item of an upstream, whether or not it is listed at the moment.
#[derive(Debug, Clone, Copy, PartialEq)]
struct TestItem {
    upstream: &'static str,
    kind: Kind,
    name: &'static str,
}

impl TestItem {
    fn all() -> impl Iterator<Item = Self> {
        UPSTREAMS.into_iter().flat_map(|(upstream, _)| {
            let named = move |kind| NAMES.map(|name| Self { upstream, kind, name });
            Kind::ALL.into_iter().flat_map(named)
        })
    }

    /// Name of the item at its upstream.
    fn own(self) -> String {
        let Self { upstream, name, .. } = self;
        match self.kind {
            Kind::Prompt | Kind::Tool => name.to_owned(),
            Kind::Resource => format!("{upstream}-file:///{name}"),
            Kind::Template => format!("{upstream}-{}:///{{path}}", name.replace('/', ".")),
        }
    }

    /// Name of the item for clients.
    fn public(self) -> String {
        match self.kind {
            Kind::Prompt | Kind::Tool => format!("{}__{}", self.upstream, self.name),
            Kind::Resource | Kind::Template => self.own(),
        }
    }

    fn definition(self) -> String {
        let (own, name) = (self.own(), self.name);
        match self.kind {
            Kind::Prompt => format!(r#"{{"name":"{own}"}}"#),
            Kind::Tool => format!(r#"{{"name":"{own}","inputSchema":{{"type":"object"}}}}"#),
            Kind::Resource => format!(r#"{{"uri":"{own}","name":"{name}"}}"#),
            Kind::Template => format!(r#"{{"uriTemplate":"{own}","name":"{name}"}}"#),
        }
    }

    /// A URI that matches the template.
    fn expanded(self) -> String {
        self.own().replace("{path}", "q")
    }

    fn is_seen(self, role: &Role) -> bool {
        role.allows(self.kind, self.upstream, &self.own())
    }

    /// Sends each kind of request for the item; returns whether the client got a result.
    async fn ask(self, client: &Client) -> Vec<(&'static str, bool)> {
        let public = self.public();
        match self.kind {
            Kind::Prompt => vec![
                ("get", client.get_prompt(&public).await.outcome.is_ok()),
                ("complete", client.complete(&public).await.outcome.is_ok()),
            ],
            Kind::Tool => vec![("call", client.call_tool(&public).await.outcome.is_ok())],
            Kind::Resource => vec![("read", client.read(&public).await.outcome.is_ok())],
            Kind::Template => {
                let params = format!(
                    r#"{{"ref":{{"type":"ref/resource","uri":"{public}"}},"argument":{{"name":"path","value":""}}}}"#
                );
                let completed = client.request("completion/complete", &params).await;
                vec![("complete", completed.outcome.is_ok())]
            }
        }
    }
}

/// Two upstreams with some of the items, and clients of two roles.
struct VisibilityFixture {
    world: World,
    listed: Vec<TestItem>,
    roles: [Role; 2],
    seed: u64,
}

const ROLES: [&str; 2] = ["one", "two"];

impl VisibilityFixture {
    async fn roll(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let listed: Vec<_> = TestItem::all().filter(|_| dice.below(3) > 0).collect();
        let roles = [Role::roll(&mut dice), Role::roll(&mut dice)];
        let scripts = UPSTREAMS.map(|(upstream, side)| {
            let own = listed.iter().filter(|thing| thing.upstream == upstream);
            let script = own.fold(Script::new(side).subscribable(), |script, thing| {
                script.raw(thing.kind, &thing.definition())
            });
            (upstream, script)
        });
        let rules: String =
            ROLES.iter().zip(&roles).map(|(name, role)| role.written(name)).collect();
        // Names stay as upstreams list them, since patterns are compared with the names that
        // clients see.
        let rules = format!("[naming]\ncharacters = \"any\"\n{rules}");
        let world = World::start(scripts.into(), &with_pair(&rules)).await;
        Self { world, listed, roles, seed }
    }

    /// Sends all requests of one client; returns the number of requests and of visible items.
    async fn check_visibility(&self, client: &Client, role: &Role) -> (usize, usize) {
        let about = |thing: TestItem, what: &str| {
            format!("{what} {thing:?} in {}, seed {}, {role:?}", client.side, self.seed)
        };
        let mut lists = Vec::new();
        for kind in Kind::ALL {
            lists.push((kind, client.list_all(kind).await));
        }
        let mut cases = 0;
        let is_there = |thing: &TestItem| self.listed.contains(thing);
        let (seen, unseen): (Vec<_>, Vec<_>) =
            TestItem::all().partition(|thing| is_there(thing) && thing.is_seen(role));
        for (things, is_seen) in [(&unseen, false), (&seen, true)] {
            let asked_before = self.world.requests();
            for thing in things {
                let (_, list) = lists.iter().find(|(kind, _)| *kind == thing.kind).expect("a list");
                let is_listed = list.contains(&thing.public());
                assert_eq!(is_listed, is_seen, "{}", about(*thing, "listed"));
                for (what, is_reached) in thing.ask(client).await {
                    // A resource that is allowed but not listed at this moment may be requested all
                    // the same.
                    let may_be_there = !is_there(thing) && thing.kind == Kind::Resource;
                    if !(may_be_there && thing.is_seen(role)) {
                        assert_eq!(is_reached, is_seen, "{}", about(*thing, what));
                    }
                    cases += 1;
                }
                cases += 1;
            }
            let hidden = unseen.iter().any(|thing| !is_there(thing) && thing.is_seen(role));
            if !is_seen && !hidden {
                assert_eq!(
                    self.world.requests(),
                    asked_before,
                    "an upstream was asked for nothing"
                );
            }
        }
        for template in TestItem::all().filter(|thing| thing.kind == Kind::Template) {
            let uri = template.expanded();
            let may = is_there(&template)
                && template.is_seen(role)
                && role.allows(Kind::Resource, template.upstream, &uri);
            let is_read = client.read(&uri).await.outcome.is_ok();
            assert_eq!(is_read, may, "{}", about(template, "expanded"));
            cases += 1;
        }
        cases += self.subscriptions(client, &seen, &unseen).await;
        (cases, seen.len())
    }

    /// Checks that a client can subscribe to exactly the resources that it may read.
    async fn subscriptions(
        &self,
        client: &Client,
        seen: &[TestItem],
        unseen: &[TestItem],
    ) -> usize {
        let resources = |things: &[TestItem]| -> Vec<String> {
            let things = things
                .iter()
                .filter(|thing| thing.kind == Kind::Resource && self.listed.contains(thing));
            things.map(|thing| thing.public()).collect()
        };
        let (seen, unseen) = (resources(seen), resources(unseen));
        let all: Vec<_> = unseen.iter().chain(&seen).map(String::as_str).collect();
        if client.side.is_modern() {
            let (changes, mut honored) = client.follow(&all).await;
            changes.cancel().await;
            let mut expected = seen.clone();
            honored.sort();
            expected.sort();
            assert_eq!(honored, expected, "in {}, seed {}", client.side, self.seed);
        } else {
            for uri in &all {
                let is_honored = client.subscribe(uri).await.outcome.is_ok();
                let may = seen.iter().any(|it| it == uri);
                assert_eq!(is_honored, may, "{uri} in {}, seed {}", client.side, self.seed);
            }
        }
        all.len()
    }

    /// Changes the lists one item at a time: each client is notified of visible items, and of no
    /// others.
    async fn change(&mut self, side: Side, dice: &mut Dice) -> usize {
        let mut cases = 0;
        let clients = [
            self.world.client_as(ROLES[0], side).await,
            self.world.client_as(ROLES[1], side).await,
        ];
        let mut changes = [clients[0].listen().await, clients[1].listen().await];
        let things: Vec<_> = TestItem::all().collect();
        for _ in 0..CHANGES {
            let thing = things[dice.index(things.len())];
            let upstream = self.world.upstream(thing.upstream);
            let definition = thing.definition();
            let was_listed = self.listed.contains(&thing);
            upstream
                .change(thing.kind, |list| match was_listed {
                    true => list.retain(|it| *it != definition),
                    false => list.push(definition.clone()),
                })
                .await;
            match was_listed {
                true => self.listed.retain(|it| *it != thing),
                false => self.listed.push(thing),
            }
            // Notifications are spaced; this is longer than their interval.
            pass(APART).await;
            for (changes, role) in changes.iter_mut().zip(&self.roles) {
                if thing.is_seen(role) {
                    let topic = changes.next_change().await;
                    assert_eq!(topic, thing.kind.topic(), "{thing:?}, seed {}", self.seed);
                }
                changes.stays_silent().await;
                cases += 1;
            }
        }
        cases
    }
}

const CHANGES: usize = 6;
const APART: std::time::Duration = std::time::Duration::from_secs(2);

#[tokio::test(start_paused = true)]
async fn s02_s03_d_p3_what_is_listed_is_reached_and_what_is_not_is_neither() {
    let wanted = if by_night() { NIGHTLY_CASES } else { CASES };
    let (mut cases, mut seen) = (0, 0);
    let first = first_seed();
    let mut seed = first;
    while cases < wanted {
        let fixture = VisibilityFixture::roll(seed).await;
        for side in sides() {
            for (name, role) in ROLES.iter().zip(&fixture.roles) {
                let client = fixture.world.client_as(name, side).await;
                let (questions, found) = fixture.check_visibility(&client, role).await;
                (cases, seen) = (cases + questions, seen + found);
            }
        }
        fixture.world.close().await;
        seed += 1;
    }
    eprintln!("{cases} cases in {} scenes from seed {first}, {seen} things seen", seed - first);
    assert!(seen * 20 > cases, "hardly anything is to be seen");
}

#[tokio::test(start_paused = true)]
async fn s49_d_p24_who_sees_a_change_hears_of_it_and_who_does_not_hears_nothing() {
    let (mut cases, mut dice) = (0, Dice::new(first_seed() + 7));
    for (side, seed) in sides().chain(sides()).zip(first_seed() + 1_000..) {
        let mut fixture = VisibilityFixture::roll(seed).await;
        cases += fixture.change(side, &mut dice).await;
        fixture.world.close().await;
    }
    eprintln!("{cases} changes heard or not");
}

#[test]
fn the_matcher_here_takes_a_star_for_anything() {
    for (pattern, text, is_match) in [
        ("*", "", true),
        ("hub/*", "hub/a/b", true),
        ("hub/a*b", "hub/ab", true),
        ("hub/a*b", "hub/abc", false),
        ("*/b", "hub/a/b", true),
        ("hub/a", "hub/ab", false),
    ] {
        assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), is_match, "{pattern} {text}");
    }
}
