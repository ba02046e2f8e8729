//! What a name may mean, in the lists of the upstreams as they are, before any rule.
//!
//! Knows nothing of: clients and roles.

use super::report::{About, Fact};
use crate::admin::status::CUT;
use crate::app;
use crate::cli::query::oneshot::House;
use crate::cli::query::required_upstreams::Meant;
use crate::config::{Config, Outline, Upstream, nearest};
use crate::mcp::definition::item::Item;
use crate::mcp::kind::Kind;
use crate::upstream::health::status_report::State;
use crate::upstream::{self, Status};

/// What was found of a name.
#[derive(Default)]
pub(super) struct Found<'c> {
    /// The items that it may mean.
    pub(super) items: Vec<Hit<'c>>,
    /// Whether any list was read.
    any: bool,
    /// What could not be looked at, and why.
    pub(super) unread: Vec<Fact>,
    /// Names like it: as clients would write them, or as upstreams do.
    near: Vec<String>,
}

/// An item that an upstream lists.
pub(super) struct Hit<'c> {
    pub(super) upstream: &'c Upstream,
    pub(super) kind: Kind,
    pub(super) item: Item,
    /// What clients call it, if they may see it.
    pub(super) key: Box<str>,
    /// How its upstream is connected.
    pub(super) state: Fact,
}

impl Found<'_> {
    /// Why nothing was found.
    pub(super) fn nothing(self, name: &str, only: Option<Kind>) -> Vec<Fact> {
        if !self.any {
            return self.unread;
        }
        let what = only.map_or("anything".to_owned(), |kind| format!("a {kind}"));
        let near = nearest(name, self.near.iter().map(String::as_str));
        let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        let text = format!("no upstream lists {what} of this name{hint}");
        self.unread.into_iter().chain([Fact::bad(About::Listed, text)]).collect()
    }
}

/// Looks for a name in what the upstreams list.
pub(super) async fn search<'c>(
    house: &'c House,
    meant: &Meant<'_, '_>,
    name: &str,
    only: Option<Kind>,
) -> Found<'c> {
    let config = house.config();
    let naming = app::naming(&config.naming);
    let mut found = Found::default();
    let own = match meant {
        Meant::Own(it, own) | Meant::OwnUri(it, own) => Some((&it.name, *own)),
        Meant::Upstream(_) | Meant::Uri | Meant::Public => None,
    };
    let asked = |upstream: &&Upstream| own.is_none_or(|(named, _)| upstream.name == *named);
    for upstream in config.upstreams.iter().filter(asked) {
        let state = state(house, &upstream.name);
        let Some(connected) = handle(house, &upstream.name).filter(|_| state.good) else {
            found.unread.push(state);
            continue;
        };
        let outlet = app::outlet(upstream);
        for kind in Kind::ALL.into_iter().filter(|kind| only.is_none_or(|only| only == *kind)) {
            let listing = match connected.list(kind).await {
                Ok(listing) => listing,
                Err(error) => {
                    let text = format!("{} could not be listed: {error}", upstream.name);
                    found.unread.push(Fact::bad(About::Upstream, text));
                    continue;
                }
            };
            found.any = true;
            if let Some(limit) = listing.truncated {
                let text = format!("{} {CUT}: {limit} of {}", upstream.name, kind.list_method());
                found.unread.push(Fact::bad(About::Listed, text));
            }
            for item in listing.items {
                let key = outlet.public_key(&naming, kind, &item.key);
                let (is_it, known) = match own {
                    Some((named, own)) => (*item.key == *own, format!("{named}/{}", item.key)),
                    None => (*key == *name, key.to_string()),
                };
                match is_it {
                    true => {
                        let state = state.clone();
                        found.items.push(Hit { upstream, kind, item, key, state });
                    }
                    false => found.near.push(known),
                }
            }
        }
    }
    found
}

/// Whether an upstream is connected, and how, in the words of `weir status`.
pub(super) fn state(house: &House, name: &str) -> Fact {
    let status = handle(house, name).map(|upstream| upstream.status().borrow().clone());
    match status {
        // Nothing is spoken with a folder, so it has no revision.
        Some(Status::Up(about)) if about.wire == "library" => {
            Fact::good(About::Upstream, format!("{name} is up: {}", about.wire))
        }
        Some(Status::Up(about)) => {
            let how = format!("{name} is up: {} {}", about.wire, about.revision);
            Fact::good(About::Upstream, how)
        }
        Some(Status::Down { reason, crash_loop }) => {
            let state = if crash_loop { State::CrashLoop } else { State::Down }.as_str();
            Fact::bad(About::Upstream, format!("{name} is {state}: {reason}"))
        }
        Some(Status::Asleep) => {
            Fact::good(About::Upstream, format!("{name} is asleep until it is used"))
        }
        Some(Status::Starting) | None => {
            Fact::bad(About::Upstream, format!("{name} is starting: it has not answered yet"))
        }
    }
}

/// That an upstream is switched off.
pub(super) fn switched_off(config: &Config, upstream: &Outline) -> Fact {
    let name = &upstream.name;
    let place = config.places.of(&["upstreams", name, "enabled"]).map(str::to_owned);
    let at = place.as_deref().map(|place| format!(" ({place})")).unwrap_or_default();
    let text = format!("{name} is switched off: `enabled = false`{at}");
    Fact { place, ..Fact::bad(About::Upstream, text) }
}

/// The running upstream of this name.
pub(super) fn handle(house: &House, name: &str) -> Option<upstream::Upstream> {
    house.app().gateway().upstreams().into_iter().find(|upstream| upstream.name().as_str() == name)
}
