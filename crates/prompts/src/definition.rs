//! Definition of a prompt for `prompts/list`, rendered when the file is read.

use bytes::Bytes;
use serde::Serialize;

use super::front_matter::{ArgumentDeclaration, FrontMatter};

/// Renders the definition of the prompt of this name.
pub(super) fn define(name: &str, front: &FrontMatter) -> Bytes {
    let definition = Definition {
        name,
        title: front.title.as_deref(),
        description: front.description.as_deref(),
        arguments: front.arguments.iter().map(define_argument).collect(),
        meta: front.version.as_deref().map(|version| Meta { version }),
    };
    Bytes::from(serde_json::to_vec(&definition).expect("strings and booleans are always JSON"))
}

fn define_argument(argument: &ArgumentDeclaration) -> DefinedArgument<'_> {
    DefinedArgument {
        name: &argument.name.value,
        title: argument.title.as_deref(),
        description: describe(argument),
        required: argument.required,
    }
}

/// The protocol has no fields for values and defaults, and few clients request completions: so the
/// description states them for the user who fills in the form.
fn describe(argument: &ArgumentDeclaration) -> String {
    let mut sentences: Vec<String> =
        argument.description.iter().map(|text| text.trim_end().to_owned()).collect();
    let values = &argument.values.0;
    if !values.is_empty() {
        let named = values.iter().take(MAX_VALUES_NAMED).map(|(value, meaning)| match meaning {
            Some(meaning) => format!("{value} ({meaning})"),
            None => value.clone(),
        });
        let mut named: Vec<String> = named.collect();
        if values.len() > MAX_VALUES_NAMED {
            named.push(format!("and {} more", values.len() - MAX_VALUES_NAMED));
        }
        sentences.push(format!("Values: {}.", named.join(", ")));
    }
    if let Some(default) =
        argument.default.as_deref().filter(|text| !text.is_empty() && !text.contains('\n'))
    {
        sentences.push(format!("Default: {default}."));
    }
    sentences.join(" ")
}

// === JSON ===

#[derive(Serialize)]
struct Definition<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    arguments: Vec<DefinedArgument<'a>>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<Meta<'a>>,
}

#[derive(Serialize)]
struct DefinedArgument<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    description: String,
    required: bool,
}

#[derive(Serialize)]
struct Meta<'a> {
    #[serde(rename = "weir/version")]
    version: &'a str,
}

/// A form's hint has to stay readable; completions offer the rest.
const MAX_VALUES_NAMED: usize = 20;
