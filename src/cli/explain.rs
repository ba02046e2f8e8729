//! `weir explain`: why a client sees something, or does not.
//!
//! Whether it is seen is asked of the client's own view, as every request asks it; what follows are the reasons, from
//! the upstream to the client. Everything is told: it is for whoever holds the configuration.

mod live;
mod reasons;
mod report;
mod route;
mod search;
mod upstream;

use clap::ValueEnum;

use super::exit::Failure;
use super::output;
use crate::admin::status::HELD_BACK;
use crate::app;
use crate::cli::query::oneshot::{AskArgs, House};
use crate::cli::query::progress;
use crate::cli::query::render::shown_json;
use crate::cli::query::required_upstreams::{Meant, Wanted};
use crate::config::owner_of;
use crate::gateway::Guest;
use crate::mcp::kind::Kind;
use crate::mcp::name::UpstreamName;
use report::{About, Fact, Finding, Sight, Story};
use search::{Hit, search};

/// What `weir explain` takes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What a client would ask for, a name or a URI; or `<upstream>/<name>`, as rules are written, with the
    /// upstream's own name or URI; or an upstream.
    #[arg(value_hint = clap::ValueHint::Other)]
    name: String,
    /// Looks among these only.
    #[arg(long, value_enum)]
    kind: Option<Explained>,
    #[command(flatten)]
    ask: AskArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Explained {
    Prompts,
    Tools,
    Resources,
    Templates,
}

impl From<Explained> for Kind {
    fn from(explained: Explained) -> Self {
        match explained {
            Explained::Prompts => Self::Prompt,
            Explained::Tools => Self::Tool,
            Explained::Resources => Self::Resource,
            Explained::Templates => Self::Template,
        }
    }
}

/// Says why something is seen or is not, by one client or by each role.
pub(super) async fn run(args: Args) -> Result<(), Failure> {
    let kind = args.kind.map(Kind::from);
    House::visit(&args.ask, Wanted::Meant(kind, &args.name), async |house| {
        let mut findings = findings(house, &args, kind).await;
        let mut asker = live::Asker::new(house);
        for finding in &mut findings {
            asker.tell_of_running(finding).await;
            if let Some(client) = &args.ask.client {
                asker.tell(client, finding).await;
            }
        }
        let (name, client) = (args.name.clone(), args.ask.client.clone());
        let story = Story { name, client, findings };
        output::print(|out| match args.ask.json {
            true => {
                let json = story.to_json();
                let json = String::from_utf8_lossy(&json);
                writeln!(out, "{}", shown_json(&json, output::is_terminal()))
            }
            false => story.write_text(out),
        })?;
        story.end()
    })
    .await
}

async fn findings(house: &House, args: &Args, kind: Option<Kind>) -> Vec<Finding> {
    let config = house.config();
    let eyes = eyes(house, args);
    let meant = Meant::of(config, kind, &args.name);
    let (upstream, own) = match &meant {
        Meant::Upstream(it) => (Some(*it), None),
        Meant::Own(it, own) | Meant::OwnUri(it, own) => (Some(*it), Some((*own).to_owned())),
        Meant::Uri | Meant::Public => (None, None),
    };
    let name = upstream.map(|it| it.name.clone());
    if let Some(off) = upstream.filter(|upstream| !upstream.enabled) {
        let facts = vec![search::switched_off(config, off)];
        return vec![Finding { kind, upstream: name, own, facts, ..Finding::default() }];
    }
    if let Meant::Upstream(it) = meant {
        return vec![upstream::finding(house, &it.name, &eyes)];
    }
    let about = || "waiting for what the upstreams list".to_owned();
    let found = search(house, &meant, &args.name, kind);
    let found = progress::watched(house.json(), about, found).await;
    let uri = match &meant {
        Meant::Uri => Some(args.name.as_str()),
        Meant::OwnUri(_, own) => Some(*own),
        Meant::Upstream(_) | Meant::Own(..) | Meant::Public => None,
    };
    let uri = uri.filter(|_| kind.is_none_or(|kind| kind == Kind::Resource));
    let mut findings: Vec<_> = found.items.iter().map(|hit| finding(house, hit, &eyes)).collect();
    match uri {
        Some(uri) if findings.is_empty() => {
            let nothing = found.nothing(&args.name, kind);
            findings.push(route::finding(house, uri, name.as_deref(), nothing, &eyes));
        }
        Some(uri) if name.is_none() => findings.extend(route::detour(house, uri, &findings, eyes)),
        None if findings.is_empty() => {
            let facts = found.nothing(&args.name, kind);
            findings.push(Finding { kind, upstream: name, own, facts, ..Finding::default() });
        }
        _ => {}
    }
    findings
}

/// Somebody to whom something is visible or not.
struct Eyes {
    role: String,
    guest: Guest,
    /// Which client has this role, and where that is written.
    client: Option<Fact>,
}

/// The client that is asked about; else each role.
fn eyes(house: &House, args: &Args) -> Vec<Eyes> {
    let Some(client) = &args.ask.client else {
        let gateway = house.app().gateway();
        let roles = house.config().roles.keys();
        return roles
            .map(|role| Eyes {
                role: role.clone(),
                guest: gateway.enter_locally(role),
                client: None,
            })
            .collect();
    };
    let guest = house.guest().clone();
    let principal = guest.principal().clone();
    let role = principal.role.to_string();
    let places = &house.config().places;
    let place = match principal.is_anonymous() {
        true => places.of(&["auth", "anonymous_role"]),
        false => places.of(&["clients", client, "role"]),
    };
    let text = match (owner_of(&role), place) {
        (Some(_), _) => format!("{client} has rules of its own"),
        (None, Some(place)) => format!("{client} has the role {role} ({place})"),
        (None, None) => format!("{client} has the role {role} (by default)"),
    };
    let place = place.map(str::to_owned);
    let fact = Fact { place, ..Fact::good(About::Client, text) };
    vec![Eyes { role, guest, client: Some(fact) }]
}

/// What is said of an item that an upstream lists.
fn finding(house: &House, hit: &Hit<'_>, eyes: &[Eyes]) -> Finding {
    let Hit { upstream, kind, item, key, state } = hit;
    let config = house.config();
    let outlet = reasons::of_outlet(config, upstream, *kind, &item.key);
    let is_out = outlet.good;
    let listed = format!("{} lists it as `{}/{}`", upstream.name, upstream.name, item.key);
    let mut facts = vec![state.clone(), Fact::good(About::Listed, listed), outlet];
    if is_out {
        let naming = app::naming(&config.naming);
        let altered = app::outlet(upstream).altered(&naming, *kind, &item.key).map(|(_, it)| it);
        facts.extend(altered.map(|reason| {
            Fact::good(About::List, format!("its name is altered for clients: {reason}"))
        }));
        facts.extend(oddity(house, hit));
    }
    let (kind, own) = (Some(*kind), Some(item.key.to_string()));
    let (name, key) = (Some(upstream.name.clone()), Some(key.to_string()));
    let mut finding = Finding { kind, upstream: name, own, key, facts, sights: Vec::new() };
    // Where nobody can see it the roles say nothing, unless one was asked about.
    let is_open = finding.is_open();
    let eyes = eyes.iter().filter(|eyes| is_open || eyes.client.is_some());
    finding.sights = eyes.map(|eyes| sight(house, hit, eyes, is_open)).collect();
    finding
}

/// Why an item that its upstream lets out is in no list all the same, or not in all of them.
fn oddity(house: &House, hit: &Hit<'_>) -> Option<Fact> {
    let Hit { upstream, kind, item, key, .. } = hit;
    let problems = house.app().gateway().problems();
    let mut problems = problems
        .iter()
        .filter(|(name, of, _)| name.as_str() == upstream.name && of == kind)
        .flat_map(|(.., problems)| &problems.first);
    if let Some(problem) = problems.find(|problem| problem.own == item.key) {
        return Some(Fact::bad(About::List, format!("it is left out: {problem}")));
    }
    let withheld = house.app().gateway().withheld();
    if withheld
        .iter()
        .any(|(name, of, own)| name.as_str() == upstream.name && of == kind && **own == *item.key)
    {
        return Some(Fact::bad(About::List, format!("it {HELD_BACK}")));
    }
    let view = house.everything().view();
    match view.resolve(*kind, key) {
        Some(other) if other.upstream.as_str() != upstream.name => {
            // Who cannot see that one sees this one.
            let text = format!("{} lists it, too, and comes first in the file", other.upstream);
            Some(Fact::good(About::List, text))
        }
        Some(target) if target.needs_task => {
            let text = "it can be called as a task only: clients of 2025-11-25 alone see it";
            Some(Fact::good(About::List, text))
        }
        Some(_) => None,
        None => {
            Some(Fact::bad(About::List, "it is left out of the list; `weir check` may say why"))
        }
    }
}

/// What one role sees of an item, and by which rules.
fn sight(house: &House, hit: &Hit<'_>, eyes: &Eyes, mut is_open: bool) -> Sight {
    let Hit { upstream, kind, item, key, .. } = hit;
    let mut facts: Vec<Fact> = eyes.client.iter().cloned().collect();
    let name: Option<UpstreamName> = upstream.name.parse().ok();
    if let Some(name) = &name {
        facts.extend(reasons::of_role(house.config(), &eyes.role, *kind, name, &item.key));
    }
    is_open &= facts.iter().all(|fact| fact.good);
    if let Some(name) = name.as_ref().filter(|_| is_open) {
        facts.extend(reasons::of_limits(house.config(), *kind, name, &item.key));
    }
    let target = eyes.guest.view().resolve(*kind, key);
    let visible = target
        .as_ref()
        .is_some_and(|target| Some(&target.upstream) == name.as_ref() && target.own == item.key);
    if let Some(other) = target.filter(|_| !visible && is_open) {
        let text = format!("what is seen is that of {}, which comes first", other.upstream);
        facts.push(Fact::bad(About::List, text));
    }
    Sight { role: eyes.role.clone(), visible, facts }
}
