//! What only the process that serves knows, so it is asked: what is left of the limits on an item, and how the
//! upstreams are doing there.
//!
//! Promise: it is looked for once, whatever there is to be asked.
//! Knows nothing of: which limits count, and where they stand.

use super::report::{About, Fact, Finding};
use crate::admin::remaining_quota::{Left, Question};
use crate::cli::instance::admin_client::{Confirmed, Running, Silence};
use crate::cli::query::oneshot::House;
use crate::mcp::call::Method;
use crate::policy;

/// Asks the process that serves: which it is, is found out once, when the first question comes.
pub(super) struct Asker<'h> {
    house: &'h House,
    found: Option<Result<Confirmed, String>>,
}

impl<'h> Asker<'h> {
    pub(super) fn new(house: &'h House) -> Self {
        Self { house, found: None }
    }

    /// Adds to what is told of limits how much of each is left for the client, or why nobody knows.
    pub(super) async fn tell(&mut self, client: &str, finding: &mut Finding) {
        let (Some(kind), Some(upstream), Some(item)) =
            (finding.kind, &finding.upstream, &finding.own)
        else {
            return;
        };
        let Some(sight) = finding.sights.first_mut() else { return };
        let Some(last) = sight.facts.iter().rposition(|fact| fact.limit.is_some()) else { return };
        let question = Question {
            client: client.to_owned(),
            method: Method::about(kind).as_str().to_owned(),
            upstream: upstream.clone(),
            item: item.clone(),
        };
        let told = match client {
            // They are counted by their addresses.
            policy::ANONYMOUS => Err("how much is left is counted by address".to_owned()),
            _ => self.ask(&question).await,
        };
        match told {
            Ok(left) => {
                for fact in &mut sight.facts {
                    if let Some(left) = left.iter().find(|left| fact.limit == Some(left.limit)) {
                        fact.text.push_str(&in_words(left));
                    }
                }
            }
            Err(why) => sight.facts.insert(last + 1, Fact::good(About::Limit, why)),
        }
    }

    /// Adds what keeps clients of the Weir that runs from seeing its upstream, or any where it may be of each: what
    /// was asked here began a moment ago, and knows nothing of what has happened there.
    pub(super) async fn tell_of_running(&mut self, finding: &mut Finding) {
        let Ok(running) = self.running().await else { return };
        let asked = finding.upstream.as_deref();
        let upstreams = running.status().upstreams.iter();
        let upstreams = upstreams.filter(|it| asked.is_none_or(|name| name == it.name));
        let facts = upstreams.flat_map(|it| {
            let why = it.why_not_whole().into_iter();
            let mut why: Vec<_> = why.map(|why| format!("{}: {why}", it.name)).collect();
            // Each is told of with its name.
            let own = finding.own.as_ref().map(|own| format!("{own:?}"));
            let of_it = |text: &&String| own.as_ref().is_some_and(|own| text.contains(&**own));
            why.extend(
                it.left_out.iter().find(of_it).map(|text| format!("{}: left out: {text}", it.name)),
            );
            why
        });
        let facts = facts.map(|text| Fact::bad(About::Running, text));
        let facts: Vec<_> = facts.take(MAX_TOLD).collect();
        finding.facts.extend(facts);
    }

    async fn ask(&mut self, question: &Question) -> Result<Vec<Left>, String> {
        self.running().await?.limits(question).await.map_err(why)
    }

    /// The process that serves with the same file, or why there is none.
    async fn running(&mut self) -> Result<&Confirmed, String> {
        if self.found.is_none() {
            self.found = Some(self.find().await.map_err(why));
        }
        match &self.found {
            Some(Ok(running)) => Ok(running),
            Some(Err(why)) => Err(why.clone()),
            None => Err(String::new()),
        }
    }

    async fn find(&self) -> Result<Confirmed, Silence> {
        let Some(file) = self.house.file() else {
            // A demonstration is nobody's.
            return Err(Silence::Nobody(String::new()));
        };
        Running::of(self.house.config(), Some(file))?.confirm().await
    }
}

fn why(silence: Silence) -> String {
    match silence {
        Silence::Nobody(_) => {
            "how much is left is known while a Weir of this configuration runs".to_owned()
        }
        Silence::Failed(failure) => format!("how much is left cannot be told: {failure}"),
    }
}

/// How much is told of the Weir that runs where a name may be of any upstream.
const MAX_TOLD: usize = 8;

fn in_words(left: &Left) -> String {
    let requests = left.requests.map(|count| format!("{count} at once"));
    let places = left.places.map(|count| format!("{count} more under way"));
    let words: Vec<_> = requests.into_iter().chain(places).collect();
    format!("; left now: {}", words.join(", "))
}
