//! What is said of an upstream as a whole: which of its kinds are seen, and whether its instructions are told.

use super::Eyes;
use super::report::{About, Fact, Finding, Sight};
use super::search::{handle, state};
use crate::catalog::View;
use crate::cli::query::oneshot::House;
use crate::mcp::kind::Kind;
use crate::upstream::Status;

/// Says of an upstream what each role sees of it.
pub(super) fn finding(house: &House, name: &str, eyes: &[Eyes]) -> Finding {
    let mut facts = vec![state(house, name)];
    if facts[0].good {
        let mut unlisted =
            Kind::ALL.into_iter().map(|kind| house.unlisted(house.everything(), kind));
        facts.extend(unlisted.find_map(|text| Some(Fact::bad(About::Listed, text?))));
    }
    let sights = match facts[0].good {
        true => eyes.iter().map(|eyes| sight(house, name, eyes)).collect(),
        false => Vec::new(),
    };
    Finding { upstream: Some(name.to_owned()), facts, sights, ..Finding::default() }
}

fn sight(house: &House, name: &str, eyes: &Eyes) -> Sight {
    let (view, everything) = (eyes.guest.view(), house.everything().view());
    let mut facts: Vec<Fact> = eyes.client.iter().cloned().collect();
    let counts =
        Kind::ALL.map(|kind| (kind, count(&view, kind, name), count(&everything, kind, name)));
    let visible = counts.iter().any(|(_, seen, _)| *seen > 0);
    let lets_out = counts.iter().any(|(.., all)| *all > 0);
    let words = counts.iter().filter(|(.., all)| *all > 0).map(|(kind, seen, all)| {
        let plural = if *all == 1 { "" } else { "s" };
        format!("{seen} of {all} {kind}{plural}")
    });
    let words = words.collect::<Vec<_>>().join(", ");
    facts.push(match lets_out {
        true => Fact { good: visible, ..Fact::good(About::Seen, words) },
        false => Fact::bad(About::Listed, format!("{name} lists nothing, or lets nothing out")),
    });
    facts.push(Fact::good(About::Told, instructions(house, name, &view, visible)));
    Sight { role: eyes.role.clone(), visible, facts }
}

fn count(view: &View, kind: Kind, name: &str) -> usize {
    view.targets(kind).iter().filter(|target| target.upstream.as_str() == name).count()
}

/// Whether the upstream's words on its use reach whoever has this view.
fn instructions(house: &House, name: &str, view: &View, visible: bool) -> &'static str {
    let status = handle(house, name).map(|upstream| upstream.status().borrow().clone());
    let words = match status {
        Some(Status::Up(about)) => about.instructions.clone(),
        _ => None,
    };
    match words {
        None => "it has no instructions",
        Some(_) if !house.config().protocol.instructions => {
            "its instructions are not told: [protocol] instructions = false"
        }
        Some(_) if !visible => "its instructions are not told: nothing of it is seen",
        Some(words) if view.instructions().is_some_and(|all| all.contains(&*words)) => {
            "its instructions are told"
        }
        Some(_) => "its instructions are not told: there are too many others before them",
    }
}
