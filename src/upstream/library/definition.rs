//! A prompt's definition, as it stands in `prompts/list`.
//!
//! Rendered once, when the file is read.
//! Knows nothing of: texts and messages.

use bytes::Bytes;
use serde::Serialize;

use super::front_matter::{FrontMatter, WrittenArgument};

/// Renders the definition of the prompt of this name.
pub(super) fn define(name: &str, matter: &FrontMatter) -> Bytes {
    let definition = Definition {
        name,
        title: matter.title.as_deref(),
        description: matter.description.as_deref(),
        arguments: matter.arguments.iter().map(define_argument).collect(),
        meta: matter.version.as_deref().map(|version| Meta { version }),
    };
    Bytes::from(serde_json::to_vec(&definition).expect("strings and booleans are always JSON"))
}

fn define_argument(argument: &WrittenArgument) -> DefinedArgument<'_> {
    DefinedArgument {
        name: &argument.name.value,
        title: argument.title.as_deref(),
        description: describe(argument),
        required: argument.required,
    }
}

/// The protocol has no fields for values and defaults, and few clients ask for completions: so the
/// description tells them to whoever fills in the form.
fn describe(argument: &WrittenArgument) -> String {
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

// === As on the wire ===

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

/// A form's hint has to stay readable; completions give the rest.
const MAX_VALUES_NAMED: usize = 20;
