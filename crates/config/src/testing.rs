//! Values that differ from the defaults, made from the descriptions of the keys.

use crate::keys::{DefaultValue, KeySpec, ValueShape};
use crate::schema::keys;
use crate::schema::page::toml;

/// Returns an assignment of another value than the default for every key of a table without free
/// names: its path, and the line.
pub fn unusual_values() -> Vec<(String, String)> {
    let mut all = Vec::new();
    keys().iter().filter(|key| key.name != "include").for_each(|key| collect(key, "", &mut all));
    all
}

fn collect(key: &KeySpec, path: &str, all: &mut Vec<(String, String)>) {
    let path = format!("{path}{}", key.name);
    match &key.shape {
        // All keys of `[server.tls]` together are one value.
        ValueShape::Table(_) if key.documentation.example.starts_with("#[") => {}
        ValueShape::Table(keys) => {
            keys.iter().for_each(|key| collect(key, &format!("{path}."), all));
        }
        // The tables with free names, which need further keys.
        _ if key.shape.keys().is_some() => {}
        _ => all.push((path.clone(), format!("{path} = {}\n", unusual_value(key)))),
    }
}

fn unusual_value(key: &KeySpec) -> String {
    if matches!(key.shape, ValueShape::Secret(_)) {
        return "\"a-secret-of-20-chars\"".to_owned();
    }
    let DefaultValue::Value(default) = &key.default else {
        return example_value(key).to_owned();
    };
    let default = toml(default);
    let other = |words: &[&'static str]| {
        let word = words.iter().find(|word| !default.contains(**word));
        format!("{:?}", word.expect("there are several words"))
    };
    let text = default.trim_matches('"');
    match &key.shape {
        ValueShape::Boolean => (default != "true").to_string(),
        ValueShape::Count(_) => (default.parse::<usize>().expect("a number") + 1).to_string(),
        ValueShape::Duration => {
            let (number, unit) = text.split_at(text.find(char::is_alphabetic).expect("a unit"));
            format!("\"{}{unit}\"", number.parse::<u64>().expect("a number") + 1)
        }
        ValueShape::Size => "\"3MiB\"".to_owned(),
        ValueShape::Choice(words) => other(words),
        ValueShape::List { of, .. } => match &**of {
            ValueShape::Choice(words) if !key.documentation.example.is_empty() => {
                example_value(key).to_owned()
            }
            ValueShape::Choice(words) => format!("[{}]", other(words)),
            _ => example_value(key).to_owned(),
        },
        _ if key.documentation.example.is_empty() => format!("\"{text}x\""),
        _ => example_value(key).to_owned(),
    }
}

/// Returns the value in a key's example.
pub(crate) fn example_value(key: &KeySpec) -> &str {
    let example = key.documentation.example.split_once(" = ").map(|(_, value)| value);
    example.unwrap_or_else(|| panic!("{} has neither a default nor an example", key.name))
}
