//! What is said of a URI that nobody lists: it may be read all the same, through a template or by its scheme.

use super::Eyes;
use super::reasons;
use super::report::{About, Fact, Finding, Sight};
use crate::catalog::Route;
use crate::cli::query::oneshot::House;
use crate::mcp::kind::Kind;
use crate::mcp::name::UpstreamName;

/// Says where the URI leads, for each role. `nothing` is told where it leads nowhere for anybody; `only` is the
/// upstream that was named.
pub(super) fn finding(
    house: &House,
    uri: &str,
    only: Option<&str>,
    nothing: Vec<Fact>,
    eyes: &[Eyes],
) -> Finding {
    let config = house.config();
    let everything = house.everything().view().route(uri);
    let mut finding = Finding {
        kind: Some(Kind::Resource),
        upstream: owner(&everything).map(UpstreamName::as_str).or(only).map(str::to_owned),
        key: Some(uri.to_owned()),
        ..Finding::default()
    };
    finding.facts = match &everything {
        Route::None => {
            let kept = config.upstreams.iter().filter(|it| only.is_none_or(|only| it.name == only));
            let kept = kept.map(|it| reasons::of_outlet_unlisted(config, it, uri));
            nothing.into_iter().chain(kept.filter(|fact| !fact.good)).collect()
        }
        Route::Listed(target) => {
            let text = format!("it is {} that lists it", target.upstream);
            nothing.into_iter().chain([Fact::good(About::Route, text)]).collect()
        }
        Route::NotCanonical(_) => vec![unlisted(), step(&everything)],
        Route::Template(_) | Route::Origin(_) | Route::Several(_) => vec![unlisted()],
    };
    if finding.is_open() {
        let sight = |eyes| sight(house, uri, only, &everything, eyes);
        finding.sights = eyes.iter().map(sight).collect();
    }
    finding
}

/// What is said of a URI that is listed, and yet not for some of these: it may lead them elsewhere.
pub(super) fn detour(
    house: &House,
    uri: &str,
    findings: &[Finding],
    eyes: Vec<Eyes>,
) -> Option<Finding> {
    let sees_it = |eyes: &Eyes| {
        let sights = findings.iter().flat_map(|finding| &finding.sights);
        sights.into_iter().any(|sight| sight.role == eyes.role && sight.visible)
    };
    let strays = |eyes: &Eyes| !sees_it(eyes) && owner(&eyes.guest.view().route(uri)).is_some();
    let eyes: Vec<_> = eyes.into_iter().filter(strays).collect();
    let everything = house.everything().view().route(uri);
    let sight = |eyes: &Eyes| sight(house, uri, None, &everything, eyes);
    let sights: Vec<_> = eyes.iter().map(sight).collect();
    let text = "whoever does not see it in a list may ask for it all the same";
    let facts = vec![Fact::good(About::Listed, text)];
    let (kind, key) = (Some(Kind::Resource), Some(uri.to_owned()));
    (!sights.is_empty()).then(|| Finding { kind, key, facts, sights, ..Finding::default() })
}

fn unlisted() -> Fact {
    Fact::good(About::Listed, "no upstream lists it")
}

fn sight(house: &House, uri: &str, only: Option<&str>, everything: &Route, eyes: &Eyes) -> Sight {
    let config = house.config();
    let route = eyes.guest.view().route(uri);
    let mut facts: Vec<Fact> = eyes.client.iter().cloned().collect();
    // Where this role has no way, that of whoever sees everything shows what bars it.
    if let Some(upstream) = owner(&route).or(owner(everything)) {
        let outlet = config.upstreams.iter().find(|it| it.name == upstream.as_str());
        let outlet = outlet.filter(|_| eyes.client.is_some());
        facts.extend(outlet.map(|it| reasons::of_outlet_unlisted(config, it, uri)));
        facts.extend(reasons::of_role_unlisted(config, &eyes.role, upstream, uri));
    }
    match &route {
        Route::None if facts.iter().all(|fact| fact.good) => {
            let text = match everything {
                Route::Template(template) => format!(
                    "the template `{}` of {} would lead there, and is hidden",
                    template.key, template.upstream
                ),
                _ => "nothing that is seen leads there".to_owned(),
            };
            facts.push(Fact::bad(About::Allowed, text));
        }
        Route::None => {}
        route => facts.push(step(route)),
    }
    let visible = owner(&route).is_some_and(|it| only.is_none_or(|only| it.as_str() == only));
    if let (Some(only), Some(other), false) = (only, owner(&route), visible) {
        facts.push(Fact::bad(About::Route, format!("so {other} is asked, and not {only}")));
    }
    Sight { role: eyes.role.clone(), visible, facts }
}

/// Whose it is, if it leads anywhere.
fn owner(route: &Route) -> Option<&UpstreamName> {
    match route {
        Route::Listed(target) | Route::Template(target) => Some(&target.upstream),
        Route::Origin(upstream) => Some(upstream),
        Route::Several(_) | Route::NotCanonical(_) | Route::None => None,
    }
}

/// Where it leads, in words.
fn step(route: &Route) -> Fact {
    match route {
        Route::Listed(target) => Fact::good(About::Route, format!("{} lists it", target.upstream)),
        Route::Template(template) => {
            let (key, upstream) = (&template.key, &template.upstream);
            Fact::good(About::Route, format!("the template `{key}` leads to {upstream}"))
        }
        Route::Origin(upstream) => {
            let text = format!("its scheme leads to {upstream}, which alone lists such URIs");
            Fact::good(About::Route, text)
        }
        Route::Several(upstreams) => {
            let names: Vec<_> = upstreams.iter().map(UpstreamName::as_str).collect();
            let text = format!("it could be of {}: none of them is asked", names.join(" or of "));
            Fact::bad(About::Route, text)
        }
        Route::NotCanonical(why) => {
            let text = format!("a URI that is not listed must be in normal form: {why}");
            Fact::bad(About::Route, text)
        }
        Route::None => Fact::bad(About::Route, "it leads nowhere"),
    }
}
