//! Conversion of servers' names to names of upstreams.
//!
//! Clients allow almost any name; an upstream's name is a lower-case letter, then at most 31 of
//! a-z, 0-9 and -.

use weir_mcp::name::UpstreamName;

/// Gives each server a unique legal name, in the order of the list. Legal names are kept.
pub(crate) fn legal(names: &[String]) -> Vec<String> {
    let mut taken: Vec<String> = names.iter().filter(|name| is_legal(name)).cloned().collect();
    let name = |name: &String| {
        if is_legal(name) {
            return name.clone();
        }
        let base = reduce_to_legal(name);
        let mut candidates = std::iter::once(base.clone()).chain(numbered(&base));
        let free = candidates.find(|name| !taken.contains(name)).unwrap_or(base.clone());
        taken.push(free.clone());
        free
    };
    names.iter().map(name).collect()
}

/// Names with a number at the end, from 2, which are as legal as `base` is.
pub(crate) fn numbered(base: &str) -> impl Iterator<Item = String> {
    (2..).map(move |number: usize| {
        let end = format!("-{number}");
        let base = base.get(..base.len().min(MAX - end.len())).unwrap_or_default();
        format!("{}{end}", base.trim_end_matches('-'))
    })
}

fn is_legal(name: &str) -> bool {
    name.parse::<UpstreamName>().is_ok()
}

fn reduce_to_legal(name: &str) -> String {
    let mut result = String::new();
    for c in name.chars().map(|c| c.to_ascii_lowercase()) {
        match c {
            'a'..='z' | '0'..='9' => result.push(c),
            _ if result.is_empty() || result.ends_with('-') => {}
            _ => result.push('-'),
        }
    }
    if !result.starts_with(|c: char| c.is_ascii_lowercase()) {
        result = format!("server-{result}");
    }
    result.truncate(MAX);
    result.trim_end_matches('-').to_owned()
}

/// Longest name of an upstream.
const MAX: usize = 32;

#[cfg(test)]
mod tests {
    use crate::cli::clients::init::names::*;

    #[test]
    fn names_become_legal_and_stay_different() {
        let names = [
            "GitHub",
            "My Server",
            "my-server",
            "21st-dev/magic",
            "ünïcode",
            "!!",
            "a-name-that-is-much-longer-than-an-upstream-may-be",
            "A-name-that-is-much-longer-than-an-upstream-may-be!",
        ];
        let legal = legal(&names.map(str::to_owned));
        let expected = [
            "github",
            "my-server-2",
            "my-server",
            "server-21st-dev-magic",
            "n-code",
            "server",
            "a-name-that-is-much-longer-than",
            "a-name-that-is-much-longer-tha-2",
        ];
        assert_eq!(legal, expected);
        assert!(legal.iter().all(|name| is_legal(name)));
    }
}
