//! Paths of Rust: the modules of its own crate that a file names by `crate::` and `super::`.

use std::collections::BTreeSet;

/// The paths, from the root of the crate, that `text` of `module` names by `crate::` or `super::`.
pub(super) fn paths_in(text: &str, module: &[String]) -> Vec<Vec<String>> {
    let is_start = |at: &usize| !text[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    let starts = ["crate::", "super::"].into_iter().flat_map(|start| text.match_indices(start));
    let starts: BTreeSet<_> = starts.map(|(at, _)| at).filter(is_start).collect();
    let mut paths = Vec::new();
    let mut end = 0;
    for at in starts {
        // The rest of a path, and the items of a group, are parts of it.
        let is_part = text[..at].ends_with("::") || at < end;
        if !is_part {
            let after = text[at..].trim_start_matches("super::").trim_start_matches("crate::");
            end = if after.starts_with('{') {
                text.len() - after.len() + group(after).len()
            } else {
                at
            };
            paths.extend(expand(module, &text[at..]).into_iter().map(|(path, _)| path));
        }
    }
    paths
}

/// The group in braces with which `text` begins.
fn group(text: &str) -> &str {
    let mut depth = 0;
    let end = text.char_indices().find(|(_, c)| {
        depth += i32::from(*c == '{') - i32::from(*c == '}');
        depth == 0
    });
    &text[..end.map_or(text.len(), |(at, _)| at)]
}

/// The paths, from the root of the crate, that a path or group in `module` stands for, each with
/// the name that it gives to its item.
pub(super) fn expand(module: &[String], text: &str) -> Vec<(Vec<String>, String)> {
    let text = text.trim_start();
    if text.starts_with('{') {
        let (mut depth, inner) = (0, &group(text)[1..]);
        let items = inner.split(|c: char| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0 && c == ','
        });
        let items = items.filter(|item| !item.trim().is_empty());
        return items.flat_map(|item| expand(module, item)).collect();
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let path = match name {
        "crate" => Vec::new(),
        "super" => module[..module.len().saturating_sub(1)].to_vec(),
        "self" | "" => module.to_vec(),
        name => module.iter().cloned().chain([name.to_owned()]).collect(),
    };
    match rest.strip_prefix("::") {
        Some(rest) => expand(&path, rest),
        None => {
            let other = rest.trim_start().strip_prefix("as ").map(|name| name.trim().to_owned());
            let name = other.or_else(|| path.last().cloned()).unwrap_or_default();
            vec![(path, name)]
        }
    }
}

#[test]
fn paths_are_found_however_they_are_written() {
    let text = "use super::{a::B, c};\nuse crate::x::d::E;\nlet f = super::g::h::<I>();\n\
                use crate::{\n    j::{self, K},\n    x::{l as m, super::n},\n};\nuse super::super::o;";
    let paths = paths_in(text, &["x", "y"].map(str::to_owned));
    let paths: Vec<_> = paths.iter().map(|path| path.join("::")).collect();
    assert_eq!(paths, ["x::a::B", "x::c", "x::d::E", "x::g::h", "j", "j::K", "x::l", "n", "o"]);
    let names = expand(&["x".to_owned()], "{a::B as C, d::{E}}").into_iter().map(|(_, name)| name);
    assert_eq!(names.collect::<Vec<_>>(), ["C", "E"]);
}
