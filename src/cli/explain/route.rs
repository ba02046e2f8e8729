//! What is said of a URI that nobody lists: it may be read all the same, through a template or by its scheme.

use super::Eyes;
use super::reasons;
use super::story::{About, Fact, Finding, Sight};
use crate::catalog::Route;
use crate::cli::house::House;
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
        upstream: owner(&everything).map(|upstream| upstream.as_str()).or(only).map(str::to_owned),
        key: Some(uri.to_owned()),
        ..Finding::default()
    };
    if everything == Route::None {
        let outlets = config.upstreams.iter();
        let kept = outlets.map(|it| reasons::of_outlet(config, it, Kind::Resource, uri));
        finding.facts = kept.filter(|fact| !fact.good).chain(nothing).collect();
        return finding;
    }
    finding.facts = vec![Fact::good(About::Listed, "no upstream lists it")];
    if everything == Route::Unsafe {
        finding.facts.push(step(&everything));
        return finding;
    }
    if let Some(upstream) = owner(&everything) {
        let outlet = config.upstreams.iter().find(|it| it.name == upstream.as_str());
        let outlet = outlet.map(|it| reasons::of_outlet(config, it, Kind::Resource, uri));
        finding.facts.extend(outlet);
    }
    finding.sights = eyes.iter().map(|eyes| sight(house, uri, &everything, eyes)).collect();
    finding
}

fn sight(house: &House, uri: &str, everything: &Route, eyes: &Eyes) -> Sight {
    let route = eyes.guest.view().route(uri);
    let visible = owner(&route).is_some();
    let mut facts: Vec<Fact> = eyes.client.iter().cloned().collect();
    // Where this role has no way, that of whoever sees everything shows what bars it.
    if let Some(upstream) = owner(&route).or(owner(everything)) {
        let role = &eyes.role;
        facts.extend(reasons::of_role(house.config(), role, Kind::Resource, upstream, uri));
    }
    match &route {
        Route::None if facts.iter().all(|fact| fact.good) => {
            let text = match everything {
                Route::Template(template) => format!(
                    "the template `{}` of {} would lead there, and it is hidden",
                    template.key, template.upstream
                ),
                _ => "nothing that is seen leads there".to_owned(),
            };
            facts.push(Fact::bad(About::Allowed, text));
        }
        Route::None => {}
        route => facts.push(step(route)),
    }
    Sight { role: eyes.role.clone(), visible, facts }
}

/// Whose it is, if it leads anywhere.
fn owner(route: &Route) -> Option<&UpstreamName> {
    match route {
        Route::Listed(target) | Route::Template(target) => Some(&target.upstream),
        Route::Origin(upstream) => Some(upstream),
        Route::Several(_) | Route::Unsafe | Route::None => None,
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
        Route::Unsafe => {
            let text = "its path goes up or stays in place (`..`, `.`), or it is too long";
            Fact::bad(About::Route, text)
        }
        Route::None => Fact::bad(About::Route, "it leads nowhere"),
    }
}
