//! The variables that clients replace in their entries, in Weir's words.
//!
//! Weir replaces `${VAR}` and `${VAR:-text}`, and reads `$$` as a dollar sign. What a client means by the
//! environment becomes that; what only the client knows is filled in where it can be, and asked for where
//! it cannot. Whatever a client does not replace stays as it is, dollar signs doubled.

use std::path::Path;

use super::document::Value;

/// Which variables a client replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Variables {
    /// `${VAR}` and `${VAR:-text}`.
    pub(in crate::cli) braces: bool,
    /// `$VAR`.
    pub(in crate::cli) bare: bool,
    /// `${env:VAR}`, `${input:id}`, `${file:path}`, `${userHome}`, `${workspaceFolder}` and their like.
    pub(in crate::cli) prefixed: bool,
}

impl Variables {
    /// A client that replaces nothing.
    pub(in crate::cli) const NONE: Self = Self { braces: false, bare: false, prefixed: false };
}

/// What is known when a text is translated.
pub(in crate::cli) struct Surroundings<'a> {
    /// What the client replaces.
    pub(in crate::cli) variables: Variables,
    /// The project's folder, if the file belongs to one.
    pub(in crate::cli) project: Option<&'a Path>,
    /// What the client asks its user for: the file's `inputs`.
    pub(in crate::cli) inputs: &'a [Input],
    /// The variables that the entry itself sets: the server fills these in, not the client.
    pub(in crate::cli) own: &'a [&'a str],
}

/// Something that a client asks its user for.
#[derive(Debug)]
pub(in crate::cli) struct Input {
    id: String,
    description: Option<String>,
    default: Option<String>,
}

/// Reads the `inputs` of a file.
pub(in crate::cli) fn inputs(document: &Value) -> Vec<Input> {
    let section = document.get("inputs").or_else(|| document.get("mcp")?.get("inputs"));
    let inputs = section.into_iter().flat_map(Value::elements);
    let read = |input: &Value| {
        let text = |key| input.get(key).and_then(Value::text);
        let is_secret = input.get("password") == Some(&Value::Bool(true));
        let default = text("default").filter(|default| !is_secret && is_plain(default));
        Some(Input { id: text("id")?, description: text("description"), default })
    };
    inputs.filter_map(read).collect()
}

/// A text in Weir's words.
#[derive(Debug, Default, PartialEq)]
pub(in crate::cli) struct Translated {
    /// The text.
    pub(in crate::cli) text: String,
    /// What of it is written out and not a variable.
    pub(in crate::cli) literal: String,
    /// The file whose content it is.
    pub(in crate::cli) file: Option<String>,
    /// Variables that have a default, and the default.
    pub(in crate::cli) defaults: Vec<(String, String)>,
    /// What somebody has to fill in.
    pub(in crate::cli) notes: Vec<String>,
}

impl Translated {
    /// Whether a variable occurs in it.
    pub(in crate::cli) fn has_variables(&self) -> bool {
        self.literal.len() < self.text.len() && self.text.replace("$$", "").contains("${")
    }

    /// The one variable that it consists of, if it does.
    pub(in crate::cli) fn variable_alone(&self) -> Option<&str> {
        let name = self.text.strip_prefix("${")?.strip_suffix('}')?;
        is_name(name).then_some(name)
    }

    /// Takes a default away, where it must not be written.
    pub(in crate::cli) fn drop_default(&mut self, name: &str, default: &str) {
        let written = format!("${{{name}:-{default}}}");
        self.text = self.text.replace(&written, &format!("${{{name}}}"));
    }

    fn write(&mut self, text: &str) {
        self.literal.push_str(text);
        self.text.push_str(&text.replace('$', "$$"));
    }

    fn name(&mut self, name: &str, default: Option<&str>) {
        match default {
            Some(default) => {
                self.text.push_str(&format!("${{{name}:-{default}}}"));
                self.defaults.push((name.to_owned(), default.to_owned()));
            }
            None => self.text.push_str(&format!("${{{name}}}")),
        }
    }
}

/// Translates a text of an entry.
pub(in crate::cli) fn translate(text: &str, around: &Surroundings<'_>) -> Translated {
    let mut result = Translated::default();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (before, from) = rest.split_at(at);
        result.write(before);
        rest = match expression(from) {
            Some((inner, after)) => {
                if !replace(inner, around, &mut result) {
                    result.write(from.strip_suffix(after).unwrap_or(from));
                }
                after
            }
            None => {
                let name = bare_name(from.get(1..).unwrap_or_default());
                if around.variables.bare && !name.is_empty() && !around.own.contains(&name) {
                    result.name(name, None);
                    from.get(1 + name.len()..).unwrap_or_default()
                } else {
                    result.write("$");
                    from.get(1..).unwrap_or_default()
                }
            }
        };
    }
    result.write(rest);
    result
}

/// What stands in the braces that a text begins with, and what comes after them.
fn expression(from: &str) -> Option<(&str, &str)> {
    from.strip_prefix("${")?.split_once('}')
}

/// Writes what an expression means. False: the client would not replace it either.
fn replace(inner: &str, around: &Surroundings<'_>, result: &mut Translated) -> bool {
    if around.variables.prefixed && replace_prefixed(inner, around, result) {
        return true;
    }
    if !around.variables.braces {
        return false;
    }
    let (name, default) = match inner.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inner, None),
    };
    let usable = is_name(name) && !around.own.contains(&name) && default.is_none_or(is_plain);
    if usable && name == "CLAUDE_PROJECT_DIR" {
        folder(around, result, |folder| folder.display().to_string());
    } else if usable {
        result.name(name, default);
    }
    usable
}

fn replace_prefixed(inner: &str, around: &Surroundings<'_>, result: &mut Translated) -> bool {
    match inner.split_once(':') {
        Some(("env", name)) if is_name(name) => result.name(name, None),
        Some(("input", id)) => input(id, around, result),
        Some(("file", path)) if result.text.is_empty() => result.file = Some(path.to_owned()),
        Some(("file" | "config" | "command", _)) => {
            result.notes.push(format!(
                "`${{{inner}}}` is known to the client only: write what it stands for"
            ));
            return false;
        }
        _ => match inner {
            "userHome" => result.name("HOME", None),
            "workspaceFolder" | "workspaceRoot" => {
                folder(around, result, |folder| folder.display().to_string());
            }
            "workspaceFolderBasename" => folder(around, result, |folder| {
                folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
            }),
            "pathSeparator" | "/" => result.write(std::path::MAIN_SEPARATOR_STR),
            _ => return false,
        },
    }
    true
}

fn folder(around: &Surroundings<'_>, result: &mut Translated, part: impl Fn(&Path) -> String) {
    match around.project {
        Some(folder) => result.write(&part(folder)),
        None => {
            result.name("WORKSPACE_FOLDER", None);
            result.notes.push(
                "the client filled in the folder of the open project: write the folder instead \
                 of ${WORKSPACE_FOLDER}, or set that variable"
                    .to_owned(),
            );
        }
    }
}

fn input(id: &str, around: &Surroundings<'_>, result: &mut Translated) {
    let name = variable_name(id);
    let input = around.inputs.iter().find(|input| input.id == id);
    let default = input.and_then(|input| input.default.as_deref());
    let asked = input.and_then(|input| input.description.as_deref());
    let asked = asked.map_or(String::new(), |asked| format!(" ({asked})"));
    result.name(&name, default);
    let or = default.map_or("", |_| " unless the default is right");
    result.notes.push(format!("the client asked for `{id}`{asked}: set the variable {name}{or}"));
}

/// The name of a variable for something that has another name.
pub(in crate::cli) fn variable_name(from: &str) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    let name: String = from.chars().map(legal).collect();
    if name.starts_with(|c: char| c.is_ascii_digit()) { format!("_{name}") } else { name }
}

fn bare_name(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    let name = text.get(..end).unwrap_or_default();
    if is_name(name) { name } else { "" }
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Whether a text can stand as a default within braces.
fn is_plain(text: &str) -> bool {
    !text.contains(['$', '{', '}'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(variables: Variables, text: &str, expected: &str) {
        let input = Input { id: "api-key".to_owned(), description: None, default: None };
        let around = Surroundings {
            variables,
            project: Some(Path::new("/src")),
            inputs: &[input],
            own: &["OWN"],
        };
        assert_eq!(translate(text, &around).text, expected, "{text}");
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
    }

    #[test]
    fn what_a_client_does_not_replace_stays_as_it_is() {
        check(Variables::NONE, "a$b ${TOKEN} ${env:X}", "a$$b $${TOKEN} $${env:X}");
        let braces = Variables { braces: true, ..Variables::NONE };
        check(braces, "$TOKEN ${env:X} ${OWN} ${", "$$TOKEN $${env:X} $${OWN} $${");
        check(Variables { prefixed: true, ..Variables::NONE }, "${TOKEN}", "$${TOKEN}");
    }

    #[test]
    fn a_text_that_is_one_variable_says_so() {
        let around = Surroundings {
            variables: Variables { braces: true, bare: true, prefixed: true },
            project: None,
            inputs: &[],
            own: &[],
        };
        let whole = |text| translate(text, &around).variable_alone().map(str::to_owned);
        assert_eq!(whole("${env:A}"), Some("A".to_owned()));
        assert_eq!(whole("${A}${B}"), None);
        assert_eq!(whole("x${A}"), None);
        assert_eq!(translate("${file:/run/key}", &around).file.as_deref(), Some("/run/key"));
    }
}
