//! Translation of the variables in clients' entries to Weir's syntax.
//!
//! Weir expands `${VAR}` and `${VAR:-text}`, and reads `$$` as a dollar sign. References to the
//! environment are translated; values that only the client has are filled in if possible, and
//! otherwise become variables with a note for the user. Text that a client does not expand stays
//! literal, with its dollar signs doubled.

use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use super::document::DocumentValue;
use weir_config::is_variable_name;

/// Variable syntaxes that a client expands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variables {
    /// `${VAR}` and `${VAR:-text}`.
    pub(crate) braces: bool,
    /// `$VAR`.
    pub(crate) bare: bool,
    /// `${env:VAR}`, `${input:id}`, `${file:path}`, `${userHome}`, `${workspaceFolder}` and others.
    pub(crate) prefixed: bool,
    /// `{env:VAR}` and `{file:path}`.
    pub(crate) curly: bool,
}

impl Variables {
    /// For a client that expands nothing.
    pub(crate) const NONE: Self =
        Self { braces: false, bare: false, prefixed: false, curly: false };
}

/// Context of a translation.
pub(crate) struct TranslateContext<'a> {
    /// Syntaxes that the client expands.
    pub(crate) variables: Variables,
    /// Folder of the project that the file belongs to.
    pub(crate) project: Option<&'a Path>,
    /// Values that the client asks its user for: the file's `inputs`.
    pub(crate) inputs: &'a [ClientInput],
    /// Variables that the entry itself sets: the server expands them, not the client.
    pub(crate) own: &'a [&'a str],
}

/// Value that a client asks its user for.
#[derive(Debug)]
pub(crate) struct ClientInput {
    id: String,
    description: Option<String>,
    default: Option<String>,
}

/// Reads the `inputs` of a file.
pub(crate) fn inputs(document: &DocumentValue) -> Vec<ClientInput> {
    let section = document.get("inputs").or_else(|| document.get("mcp")?.get("inputs"));
    let inputs = section.into_iter().flat_map(DocumentValue::elements);
    let read = |input: &DocumentValue| {
        let text = |key| input.get(key).and_then(DocumentValue::text);
        let is_secret = input.get("password") == Some(&DocumentValue::Bool(true));
        let default = text("default").filter(|default| !is_secret && is_plain(default));
        Some(ClientInput { id: text("id")?, description: text("description"), default })
    };
    inputs.filter_map(read).collect()
}

/// Text in Weir's syntax.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Translated {
    /// Translated text.
    pub(crate) text: String,
    /// Literal parts of it, without the variables.
    pub(crate) literal: String,
    /// File whose content is the value.
    pub(crate) file: Option<String>,
    /// Variables with their defaults.
    pub(crate) defaults: Vec<(String, String)>,
    /// Steps that the user has to do.
    pub(crate) notes: Vec<String>,
}

impl Translated {
    /// Returns whether the text contains a variable.
    pub(crate) fn has_variables(&self) -> bool {
        self.literal.len() < self.text.len() && self.text.replace("$$", "").contains("${")
    }

    /// Returns the variable, if the text consists of exactly one.
    pub(crate) fn as_single_variable(&self) -> Option<&str> {
        let name = self.text.strip_prefix("${")?.strip_suffix('}')?;
        is_variable_name(name).then_some(name)
    }

    /// Removes a default that must not be written.
    pub(crate) fn drop_default(&mut self, name: &str, default: &str) {
        let written = format!("${{{name}:-{default}}}");
        self.text = self.text.replace(&written, &format!("${{{name}}}"));
    }

    fn write_literal(&mut self, text: &str) {
        self.literal.push_str(text);
        self.text.push_str(&text.replace('$', "$$"));
    }

    fn write_variable(&mut self, name: &str, default: Option<&str>) {
        match default {
            Some(default) => {
                self.text.push_str(&format!("${{{name}:-{default}}}"));
                self.defaults.push((name.to_owned(), default.to_owned()));
            }
            None => self.text.push_str(&format!("${{{name}}}")),
        }
    }
}

/// Translates a text of an entry to Weir's syntax.
pub(crate) fn translate(text: &str, context: &TranslateContext<'_>) -> Translated {
    let mut result = Translated::default();
    let mut end = 0;
    for found in REFERENCE.captures_iter(text) {
        let Some(whole) = found.get(0) else { continue };
        result.write_literal(text.get(end..whole.start()).unwrap_or_default());
        end = whole.end();
        let is_expanded = match (found.get(1), found.get(2), found.get(3)) {
            (Some(inner), ..) => replace(inner.as_str(), context, &mut result),
            (None, Some(name), _) => replace_bare(name.as_str(), context, &mut result),
            (None, None, Some(inner)) => replace_curly(inner.as_str(), context, &mut result),
            (None, None, None) => false,
        };
        if !is_expanded {
            result.write_literal(whole.as_str());
        }
    }
    result.write_literal(text.get(end..).unwrap_or_default());
    result
}

/// `${…}`, `$VAR`, `{env:…}` or `{file:…}`, or another dollar sign.
static REFERENCE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\$\{([^}]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)|\{((?:env|file):[^}$]*)\}|\$")
        .expect("the pattern is valid")
});

fn replace_bare(name: &str, context: &TranslateContext<'_>, result: &mut Translated) -> bool {
    let is_expanded = context.variables.bare && !context.own.contains(&name);
    if is_expanded {
        result.write_variable(name, None);
    }
    is_expanded
}

fn replace_curly(inner: &str, context: &TranslateContext<'_>, result: &mut Translated) -> bool {
    context.variables.curly && replace_prefixed(inner, context, result)
}

/// Writes the translation of an expression. Returns false if the client would not expand it.
fn replace(inner: &str, context: &TranslateContext<'_>, result: &mut Translated) -> bool {
    if context.variables.prefixed && replace_prefixed(inner, context, result) {
        return true;
    }
    if !context.variables.braces {
        return false;
    }
    let (name, default) = match inner.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inner, None),
    };
    let usable =
        is_variable_name(name) && !context.own.contains(&name) && default.is_none_or(is_plain);
    if usable && name == "CLAUDE_PROJECT_DIR" {
        write_folder(context, result, |folder| folder.display().to_string());
    } else if usable {
        result.write_variable(name, default);
    }
    usable
}

fn replace_prefixed(inner: &str, context: &TranslateContext<'_>, result: &mut Translated) -> bool {
    match inner.split_once(':') {
        Some(("env", name)) if is_variable_name(name) => result.write_variable(name, None),
        Some(("input", id)) => input(id, context, result),
        Some(("file", path)) if result.text.is_empty() => result.file = Some(path.to_owned()),
        Some(("file" | "config" | "command", _)) => {
            result
                .notes
                .push(format!("`${{{inner}}}` is known only to the client: write its value"));
            return false;
        }
        _ => match inner {
            "userHome" => result.write_variable("HOME", None),
            "workspaceFolder" | "workspaceRoot" => {
                write_folder(context, result, |folder| folder.display().to_string());
            }
            "workspaceFolderBasename" => write_folder(context, result, |folder| {
                folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
            }),
            "pathSeparator" | "/" => result.write_literal(std::path::MAIN_SEPARATOR_STR),
            _ => return false,
        },
    }
    true
}

fn write_folder(
    context: &TranslateContext<'_>,
    result: &mut Translated,
    part: impl Fn(&Path) -> String,
) {
    match context.project {
        Some(folder) => result.write_literal(&part(folder)),
        None => {
            result.write_variable("WORKSPACE_FOLDER", None);
            result.notes.push(
                "the client filled in the folder of the open project: write the folder instead \
                 of ${WORKSPACE_FOLDER}, or set that variable"
                    .to_owned(),
            );
        }
    }
}

fn input(id: &str, context: &TranslateContext<'_>, result: &mut Translated) {
    let name = variable_name(id);
    let input = context.inputs.iter().find(|input| input.id == id);
    let default = input.and_then(|input| input.default.as_deref());
    let description = input.and_then(|input| input.description.as_deref());
    let description = description.map_or(String::new(), |description| format!(" ({description})"));
    result.write_variable(&name, default);
    let or = default.map_or("", |_| " unless the default is right");
    result
        .notes
        .push(format!("the client asked for `{id}`{description}: set the variable {name}{or}"));
}

/// Makes a variable name from another name.
pub(crate) fn variable_name(from: &str) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    let name: String = from.chars().map(legal).collect();
    if name.starts_with(|c: char| c.is_ascii_digit()) { format!("_{name}") } else { name }
}

/// Returns whether a text can be a default within braces.
fn is_plain(text: &str) -> bool {
    !text.contains(['$', '{', '}'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(variables: Variables, text: &str, expected: &str) {
        let input = ClientInput { id: "api-key".to_owned(), description: None, default: None };
        let context = TranslateContext {
            variables,
            project: Some(Path::new("/src")),
            inputs: &[input],
            own: &["OWN"],
        };
        assert_eq!(translate(text, &context).text, expected, "{text}");
    }

    #[test]
    fn what_means_the_environment_is_a_variable() {
        let braces = Variables { braces: true, ..Variables::NONE };
        check(braces, "Bearer ${TOKEN}", "Bearer ${TOKEN}");
        check(braces, "${URL:-https://a.example}/mcp", "${URL:-https://a.example}/mcp");
        check(Variables { bare: true, ..braces }, "$A-${B} $5", "${A}-${B} $$5");
        let prefixed = Variables { prefixed: true, ..Variables::NONE };
        check(prefixed, "${env:TOKEN}", "${TOKEN}");
        check(prefixed, "${userHome}${/}x", "${HOME}/x");
        check(prefixed, "${workspaceFolder}/x", "/src/x");
        check(prefixed, "k=${input:api-key}", "k=${API_KEY}");
        let curly = Variables { curly: true, ..Variables::NONE };
        check(curly, "Bearer {env:TOKEN} $5 {x}", "Bearer ${TOKEN} $$5 {x}");
    }

    #[test]
    fn what_a_client_does_not_replace_stays_as_it_is() {
        check(Variables::NONE, "a$b ${TOKEN} ${env:X}", "a$$b $${TOKEN} $${env:X}");
        let braces = Variables { braces: true, ..Variables::NONE };
        check(braces, "$TOKEN ${env:X} ${OWN} ${", "$$TOKEN $${env:X} $${OWN} $${");
        check(Variables { prefixed: true, ..Variables::NONE }, "${TOKEN}", "$${TOKEN}");
        check(braces, "{env:TOKEN}", "{env:TOKEN}");
    }

    #[test]
    fn a_text_that_is_one_variable_says_so() {
        let context = TranslateContext {
            variables: Variables { braces: true, bare: true, prefixed: true, curly: false },
            project: None,
            inputs: &[],
            own: &[],
        };
        let whole = |text| translate(text, &context).as_single_variable().map(str::to_owned);
        assert_eq!(whole("${env:A}"), Some("A".to_owned()));
        assert_eq!(whole("${A}${B}"), None);
        assert_eq!(whole("x${A}"), None);
        assert_eq!(translate("${file:/run/key}", &context).file.as_deref(), Some("/run/key"));
    }
}
