//! Values that a client receives, word for word: the walk of `clients/walk.mjs`, compared with
//! `values.json`.

use serde_json::{Map, Value};
use std::process::Stdio;

use tokio::process::Command;

use crate::fleet::{RUN_PATIENCE, within};
use crate::parts::part;
use crate::run::Era;
use crate::suite::{Verdicts, script};

/// Differences that a client of this era saw: `values/step` → place and difference.
pub(crate) async fn of_server(url: &str, era: Era, nonce: &str) -> Verdicts {
    let mut command = Command::new(part("bin/node"));
    command.arg(script(&format!("clients/{era}.mjs"))).arg(url);
    command.stdin(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = within(RUN_PATIENCE, command.output()).await.unwrap();
    let Ok(mut seen) = serde_json::from_slice::<Map<String, Value>>(&output.stdout) else {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        return Verdicts::from([("values/".to_owned(), stderr)]);
    };
    let mut verdicts = Verdicts::new();
    for (step, wanted) in expected(nonce) {
        let seen = seen.remove(&step).unwrap_or_default();
        if let Some(difference) = first_difference("", &seen, &wanted) {
            verdicts.insert(format!("values/{step}"), difference);
        }
    }
    for step in seen.keys() {
        verdicts.insert(format!("values/{step}"), "values.json does not know it".to_owned());
    }
    verdicts
}

/// All steps of the walk.
pub(crate) fn steps() -> Vec<String> {
    expected("").into_iter().map(|(step, _)| format!("values/{step}")).collect()
}

fn expected(nonce: &str) -> Map<String, Value> {
    let text = std::fs::read_to_string(script("values.json")).unwrap();
    serde_json::from_str(&text.replace("{nonce}", nonce)).unwrap()
}

/// First difference between two values, and its place.
fn first_difference(place: &str, seen: &Value, wanted: &Value) -> Option<String> {
    match (seen, wanted) {
        (Value::Object(seen), Value::Object(wanted)) => {
            // Seen members are compared first, then the missing ones.
            let keys = seen.keys().chain(wanted.keys().filter(|key| !seen.contains_key(*key)));
            let sides = keys.map(|key| (key, seen.get(key), wanted.get(key)));
            sides.into_iter().find_map(|(key, seen, wanted)| {
                let (seen, wanted) = (seen.unwrap_or(&Value::Null), wanted.unwrap_or(&Value::Null));
                first_difference(&format!("{place}/{key}"), seen, wanted)
            })
        }
        (Value::Array(seen), Value::Array(wanted)) if seen.len() == wanted.len() => {
            let sides = seen.iter().zip(wanted).enumerate();
            sides.into_iter().find_map(|(nth, (seen, wanted))| {
                first_difference(&format!("{place}/{nth}"), seen, wanted)
            })
        }
        _ if seen == wanted => None,
        _ => Some(format!("{place}: {seen} instead of {wanted}")),
    }
}
