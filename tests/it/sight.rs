//! Listed, reachable, heard of: three faces of one table, for generated roles and catalogs, in every
//! revision over every wire (S-02, S-03, D-P3).
//!
//! What a role may see is decided here a second time, by a matcher that has nothing in common with
//! Weir's but the rule: what no pattern allows is denied, and a denial wins.

use weir::mcp::kind::Kind;
use weir::mcp::revision::Revision;

use crate::by_night;
use crate::cell::{LEGACY_HTTP, LEGACY_SSE, MODERN_HTTP, Side, Wire};
use crate::client::Client;
use crate::sim::Dice;
use crate::upstream::Script;
use crate::world::{World, pass, with_pair};

/// How many (client, item, question) are asked in all.
const CASES: usize = 100_000;
const NIGHTLY_CASES: usize = 1_000_000;

/// What items are called; each upstream has some of them.
const NAMES: [&str; 5] = ["a", "b", "ab", "ba", "a/b"];
const UPSTREAMS: [(&str, Side); 2] = [("hub", MODERN_HTTP), ("rim", LEGACY_HTTP)];

/// Every revision over every wire that it has.
fn sides() -> impl Iterator<Item = Side> {
    let wires = [Wire::Http, Wire::Stdio];
    let all = Revision::ALL.into_iter();
    all.flat_map(move |revision| wires.map(|wire| Side::new(revision, wire)))
        .chain([Side::new(Revision::V2024_11_05, Wire::Sse), LEGACY_SSE])
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

/// What a role allows and denies, of each kind that there are rules for.
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

/// An item of an upstream's, whether it is listed at the moment or not.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Thing {
    upstream: &'static str,
    kind: Kind,
    name: &'static str,
}

impl Thing {
    fn all() -> impl Iterator<Item = Self> {
        UPSTREAMS.into_iter().flat_map(|(upstream, _)| {
            let named = move |kind| NAMES.map(|name| Self { upstream, kind, name });
            Kind::ALL.into_iter().flat_map(named)
        })
    }

    /// What its upstream calls it.
    fn own(self) -> String {
        let Self { upstream, name, .. } = self;
        match self.kind {
            Kind::Prompt | Kind::Tool => name.to_owned(),
            Kind::Resource => format!("{upstream}-file:///{name}"),
            Kind::Template => format!("{upstream}-{}:///{{path}}", name.replace('/', ".")),
        }
    }

    /// What clients call it.
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

    /// A URI that the template stands for.
    fn expanded(self) -> String {
        self.own().replace("{path}", "q")
    }

    fn is_seen(self, role: &Role) -> bool {
        role.allows(self.kind, self.upstream, &self.own())
    }

    /// Every way to ask for it, and whether there is an answer for a client.
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

/// Two upstreams with some of the things, and clients of two roles.
struct Scene {
    world: World,
    listed: Vec<Thing>,
    roles: [Role; 2],
    seed: u64,
}

const ROLES: [&str; 2] = ["one", "two"];

impl Scene {
    async fn roll(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let listed: Vec<_> = Thing::all().filter(|_| dice.below(3) > 0).collect();
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
        // Names as upstreams list them: what a pattern matches is compared with what a client sees.
        let rules = format!("[naming]\ncharacters = \"any\"\n{rules}");
        let world = World::start(scripts.into(), &with_pair(&rules)).await;
        Self { world, listed, roles, seed }
    }

    /// Asks one client of everything; returns how many questions that were, and how many things it sees.
    async fn question(&self, client: &Client, role: &Role) -> (usize, usize) {
        let about = |thing: Thing, what: &str| {
            format!("{what} {thing:?} in {}, seed {}, {role:?}", client.side, self.seed)
        };
        let mut lists = Vec::new();
        for kind in Kind::ALL {
            lists.push((kind, client.list_all(kind).await));
        }
        let mut cases = 0;
        let is_there = |thing: &Thing| self.listed.contains(thing);
        let (seen, unseen): (Vec<_>, Vec<_>) =
            Thing::all().partition(|thing| is_there(thing) && thing.is_seen(role));
        for (things, is_seen) in [(&unseen, false), (&seen, true)] {
            let asked_before = self.world.requests();
            for thing in things {
                let (_, list) = lists.iter().find(|(kind, _)| *kind == thing.kind).expect("a list");
                let is_listed = list.contains(&thing.public());
                assert_eq!(is_listed, is_seen, "{}", about(*thing, "listed"));
                for (what, is_reached) in thing.ask(client).await {
                    // What is allowed and not there at this moment may be asked for all the same.
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
        for template in Thing::all().filter(|thing| thing.kind == Kind::Template) {
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

    /// What may be subscribed to is what may be read.
    async fn subscriptions(&self, client: &Client, seen: &[Thing], unseen: &[Thing]) -> usize {
        let resources = |things: &[Thing]| -> Vec<String> {
            let things = things
                .iter()
                .filter(|thing| thing.kind == Kind::Resource && self.listed.contains(thing));
            things.map(|thing| thing.public()).collect()
        };
        let (seen, unseen) = (resources(seen), resources(unseen));
        let all: Vec<_> = unseen.iter().chain(&seen).map(String::as_str).collect();
        if client.side.is_modern() {
            let (ears, mut honored) = client.follow(&all).await;
            ears.cancel().await;
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

    /// Changes the lists one thing at a time: each client hears of what it may see, and of nothing else.
    async fn change(&mut self, side: Side, dice: &mut Dice) -> usize {
        let mut cases = 0;
        let clients = [
            self.world.client_as(ROLES[0], side).await,
            self.world.client_as(ROLES[1], side).await,
        ];
        let mut ears = [clients[0].listen().await, clients[1].listen().await];
        let things: Vec<_> = Thing::all().collect();
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
            // Longer than notices are spaced.
            pass(APART).await;
            for (ears, role) in ears.iter_mut().zip(&self.roles) {
                if thing.is_seen(role) {
                    let topic = ears.next_change().await;
                    assert_eq!(topic, thing.kind.topic(), "{thing:?}, seed {}", self.seed);
                }
                ears.stays_silent().await;
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
    let (mut cases, mut seen, mut seed) = (0, 0, 0);
    while cases < wanted {
        let scene = Scene::roll(seed).await;
        for side in sides() {
            for (name, role) in ROLES.iter().zip(&scene.roles) {
                let client = scene.world.client_as(name, side).await;
                let (asked, found) = scene.question(&client, role).await;
                (cases, seen) = (cases + asked, seen + found);
            }
        }
        scene.world.close().await;
        seed += 1;
    }
    eprintln!("{cases} cases in {seed} scenes, {seen} things seen");
    assert!(seen * 20 > cases, "hardly anything is to be seen");
}

#[tokio::test(start_paused = true)]
async fn s49_d_p24_who_sees_a_change_hears_of_it_and_who_does_not_hears_nothing() {
    let (mut cases, mut dice) = (0, Dice::new(7));
    for (side, seed) in sides().chain(sides()).zip(1_000..) {
        let mut scene = Scene::roll(seed).await;
        cases += scene.change(side, &mut dice).await;
        scene.world.close().await;
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
