//! What is left of the limits on an item: only the process that serves knows, so it is asked.
//!
//! Knows nothing of: which limits count, and where they stand.

use super::story::{About, Fact, Finding};
use crate::cli::house::House;
use crate::cli::running::{Running, Silence};
use crate::mcp::call::Method;
use crate::ops::limits::{Left, Question};
use crate::policy;

/// Adds to what is told of limits how much of each is left for the client, or why nobody knows.
pub(super) async fn tell(house: &House, client: &str, finding: &mut Finding) {
    let (Some(kind), Some(upstream), Some(item)) = (finding.kind, &finding.upstream, &finding.own)
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
        _ => ask(house, &question).await,
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

async fn ask(house: &House, question: &Question) -> Result<Vec<Left>, String> {
    let asked = async { Running::of(house.config(), house.file())?.limits(question).await };
    asked.await.map_err(|silence| match silence {
        Silence::Nobody(_) => {
            "how much is left is known while a Weir of this configuration runs".to_owned()
        }
        Silence::Failed(failure) => format!("how much is left cannot be told: {failure}"),
    })
}

fn in_words(left: &Left) -> String {
    let requests = left.requests.map(|count| format!("{count} at once"));
    let places = left.places.map(|count| format!("{count} more under way"));
    let words: Vec<_> = requests.into_iter().chain(places).collect();
    format!("; left now: {}", words.join(", "))
}
