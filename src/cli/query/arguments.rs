//! Arguments as they are typed, and what prompts and tools take.
//!
//! A tool's own schema says what type a typed text becomes; what the schema does not say is guessed as
//! little as possible. JSON is passed on as it was typed.
//!
//! Knows nothing of: JSON Schema beyond the types and names of an object's properties. A value that
//! has the right type may still be refused by its tool.

use bytes::Bytes;

use crate::cli::exit::Failure;
use crate::cli::query::render::{objects, plain};
use crate::json::{self, Object};

/// An argument as it was typed.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    pub(crate) name: String,
    value: Typed,
}

#[derive(Debug, Clone)]
enum Typed {
    /// `NAME=TEXT`
    Text(String),
    /// `NAME:=JSON`
    Json(Bytes),
}

/// Reads `NAME=TEXT`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected ARGUMENT=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Reads `NAME=TEXT` or `NAME:=JSON`.
pub(crate) fn given(text: &str) -> Result<Given, String> {
    let (name, value) = pair(text).map_err(|expected| format!("{expected} or ARGUMENT:=JSON"))?;
    let Some(name) = name.strip_suffix(':') else {
        return Ok(Given { name, value: Typed::Text(value) });
    };
    let json = Json::read(&value).ok_or("what follows := is not JSON")?;
    Ok(Given { name: name.to_owned(), value: Typed::Json(json.text) })
}

/// What a prompt or a tool takes.
#[derive(Debug)]
pub(crate) struct Takes {
    parameters: Vec<Parameter>,
    /// Whether it may take others, too.
    open: bool,
}

#[derive(Debug)]
struct Parameter {
    name: String,
    required: bool,
    /// The names of its types; none where the schema does not say.
    types: Vec<String>,
    /// The texts that it may be, where it may be only one of some.
    choices: Vec<String>,
}

impl Takes {
    /// Reads what a listed prompt takes: texts.
    pub(crate) fn of_prompt(definition: &Object) -> Self {
        let parameter = |argument: &Object| Parameter {
            name: argument.get_string("name").unwrap_or_default().into_owned(),
            required: argument.get("required") == Some("true"),
            types: Vec::new(),
            choices: Vec::new(),
        };
        let parameters = objects(definition, "arguments").iter().map(parameter).collect();
        Self { parameters, open: false }
    }

    /// Reads what a listed tool takes.
    pub(crate) fn of_tool(definition: &Object) -> Self {
        let schema = definition.get_object("inputSchema").unwrap_or_default();
        let required = strings(&schema, "required");
        let properties = schema.get_object("properties").unwrap_or_default();
        let parameter = |name: &str| {
            let property = properties.get_object(name).unwrap_or_default();
            let one = property.get_string("type").map(|one| vec![one.into_owned()]);
            Parameter {
                name: name.to_owned(),
                required: required.iter().any(|it| it == name),
                types: one.unwrap_or_else(|| strings(&property, "type")),
                choices: strings(&property, "enum"),
            }
        };
        let mut parameters: Vec<_> = properties.keys().map(parameter).collect();
        // A schema may require what it says nothing else of.
        let unsaid = required.iter().filter(|name| !properties.has(name));
        parameters.extend(unsaid.map(|name| parameter(name)));
        let open = match schema.get("additionalProperties") {
            Some("false") => schema.has("patternProperties"),
            Some(_) => true,
            None => properties.is_empty() || schema.has("patternProperties"),
        };
        Self { parameters, open }
    }

    /// Complains about required arguments that are missing and about those that are not known.
    pub(crate) fn check<'a>(
        &self,
        item: &str,
        given: impl Iterator<Item = &'a str>,
    ) -> Result<(), Failure> {
        let given: Vec<&str> = given.collect();
        let missing = self
            .parameters
            .iter()
            .filter(|parameter| parameter.required && !given.contains(&parameter.name.as_str()));
        let missing = names(missing.map(|parameter| parameter.name.as_str()));
        self.complain(item, &missing, &given)
    }

    /// Complains about arguments that are not known.
    pub(crate) fn check_known<'a>(
        &self,
        item: &str,
        given: impl Iterator<Item = &'a str>,
    ) -> Result<(), Failure> {
        self.complain(item, "", &given.collect::<Vec<_>>())
    }

    fn complain(&self, item: &str, missing: &str, given: &[&str]) -> Result<(), Failure> {
        let known = |name: &str| self.parameters.iter().any(|parameter| parameter.name == name);
        let unknown = given.iter().copied().filter(|name| !self.open && !known(name));
        let wrong = match (names(unknown).as_str(), missing) {
            ("", "") => return Ok(()),
            (unknown, "") => format!("does not take {unknown}"),
            ("", missing) => format!("needs {missing}"),
            (unknown, missing) => format!("needs {missing} and does not take {unknown}"),
        };
        Err(Failure::Usage(format!("`{item}` {wrong}; {}", self.to_words())))
    }

    /// The value of an argument, as JSON of the type that is taken.
    pub(crate) fn value(&self, item: &str, given: &Given) -> Result<Bytes, Failure> {
        let text = match &given.value {
            Typed::Json(json) => return Ok(json.clone()),
            Typed::Text(text) => text,
        };
        let parameter = self.parameters.iter().find(|parameter| parameter.name == given.name);
        let value = match parameter {
            Some(parameter) => parameter.value(text),
            None => Some(guessed(text)),
        };
        value.ok_or_else(|| {
            let types = parameter.map(Parameter::to_type).unwrap_or_default();
            Failure::Usage(format!(
                "the argument `{}` of `{item}` must be of type {types}, and `{}` is not",
                given.name,
                plain(text)
            ))
        })
    }

    fn to_words(&self) -> String {
        let word = |parameter: &Parameter| {
            let about = [parameter.to_type(), String::from("required")];
            let about = about.into_iter().take(1 + usize::from(parameter.required));
            let about: Vec<_> = about.filter(|text| !text.is_empty()).collect();
            match about.is_empty() {
                true => format!("`{}`", plain(&parameter.name)),
                false => format!("`{}` ({})", plain(&parameter.name), about.join(", ")),
            }
        };
        let words: Vec<_> = self.parameters.iter().map(word).collect();
        match words.is_empty() {
            true => "it takes no arguments".to_owned(),
            false => format!("it takes {}", words.join(", ")),
        }
    }
}

impl Parameter {
    fn to_type(&self) -> String {
        plain(&self.types.join(" or "))
    }

    /// A text as JSON of this type; none if it cannot be.
    fn value(&self, text: &str) -> Option<Bytes> {
        if self.choices.iter().any(|choice| choice == text) {
            return Some(json::quote(text));
        }
        if !self.types.iter().all(|one| TYPES.contains(&one.as_str())) || self.types.is_empty() {
            return Some(guessed(text));
        }
        let takes_text = self.types.iter().any(|one| one == "string");
        if takes_text && self.types.len() == 1 {
            return Some(json::quote(text));
        }
        let json = Json::read(text).filter(|json| self.types.iter().any(|one| json.is(one)));
        match json {
            // Where a text may stand, `null` is the text.
            Some(json) if !(takes_text && json.is("null")) => Some(json.text),
            _ => takes_text.then(|| json::quote(text)),
        }
    }
}

/// JSON if it is a number, a boolean, an object or an array; else the text.
fn guessed(text: &str) -> Bytes {
    let json = Json::read(text).filter(|json| !json.is("null") && !json.is("string"));
    json.map_or_else(|| json::quote(text), |json| json.text)
}

/// The types of JSON Schema.
const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];

/// A text that is JSON.
struct Json {
    text: Bytes,
}

impl Json {
    fn read(text: &str) -> Option<Self> {
        // Whatever is valid inside an object is valid: one reader of JSON, with its limits.
        let whole = Object::parse(format!("{{\"value\":{text}}}")).ok()?;
        let only = whole.keys().eq(["value"]);
        let text = only.then(|| whole.get_bytes("value")).flatten()?;
        Some(Self { text: json::on_one_line(text) })
    }

    fn is(&self, kind: &str) -> bool {
        let number = || std::str::from_utf8(&self.text).ok()?.parse::<f64>().ok();
        match (self.text.first(), kind) {
            (Some(b'{'), "object") | (Some(b'['), "array") | (Some(b'"'), "string") => true,
            (Some(b't' | b'f'), "boolean") | (Some(b'n'), "null") => true,
            (Some(b'-' | b'0'..=b'9'), "number") => true,
            // JSON Schema, since draft 6: 1.0 is an integer, too.
            (Some(b'-' | b'0'..=b'9'), "integer") => {
                number().is_some_and(|number| number.fract() == 0.0)
            }
            _ => false,
        }
    }
}

fn strings(object: &Object, member: &str) -> Vec<String> {
    let elements = object.get_elements(member);
    let text = |element: Bytes| {
        Some(json::decode_string(std::str::from_utf8(&element).ok()?)?.into_owned())
    };
    elements.unwrap_or_default().filter_map(text).collect()
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("`{}`", plain(name))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use crate::cli::query::arguments::*;
    use insta::assert_snapshot;

    fn tool(schema: &str) -> Takes {
        let definition = format!(r#"{{"name":"t","inputSchema":{schema}}}"#);
        Takes::of_tool(&Object::parse(definition).expect("an object"))
    }

    const TYPED: &str = r#"{"properties":{
        "s":{"type":"string"},"n":{"type":"number"},"i":{"type":"integer"},"b":{"type":"boolean"},
        "a":{"type":"array"},"o":{"type":"object"},"u":{"type":["integer","string"]},
        "m":{"type":["string","null"]},"z":{"type":["integer","null"]},"x":{},
        "e":{"enum":["1","2"]},"w":{"type":"wavelength"}},"required":["s"]}"#;

    fn value(argument: &str) -> String {
        let given = given(argument).expect(argument);
        match tool(TYPED).value("t", &given) {
            Ok(json) => String::from_utf8(json.into()).expect("text"),
            Err(failure) => failure.to_string(),
        }
    }

    #[test]
    fn a_text_becomes_what_the_schema_says() {
        for (argument, expected) in [
            ("s=1", r#""1""#),
            ("s=a=b \"c\"", r#""a=b \"c\"""#),
            ("s=", r#""""#),
            ("n=1e400", "1e400"),
            ("n= 1.10 ", "1.10"),
            ("i=-7", "-7"),
            ("i=1.0", "1.0"),
            ("b=true", "true"),
            ("a=[1,\"x\"]", "[1,\"x\"]"),
            ("o={\"k\":null}", "{\"k\":null}"),
            ("u=5", "5"),
            ("u=five", "\"five\""),
            ("u=5.5", "\"5.5\""),
            ("m=null", "\"null\""),
            ("z=null", "null"),
            ("x=5", "5"),
            ("x=null", "\"null\""),
            ("x=\"q\"", r#""\"q\"""#),
            ("e=1", "\"1\""),
            ("e=3", "3"),
            ("w=3", "3"),
            ("s:=null", "null"),
            ("i:=\"no\"", "\"no\""),
        ] {
            assert_eq!(value(argument), expected, "{argument}");
        }
    }

    #[test]
    fn a_text_of_another_type_is_named() {
        let all = ["n=x", "i=1.5", "b=1", "a={}", "o=[]", "z=x", "o={\"a\":1},\"b\":{}"].map(value);
        assert_snapshot!(all.join("\n"), @r#"
        the argument `n` of `t` must be of type number, and `x` is not
        the argument `i` of `t` must be of type integer, and `1.5` is not
        the argument `b` of `t` must be of type boolean, and `1` is not
        the argument `a` of `t` must be of type array, and `{}` is not
        the argument `o` of `t` must be of type object, and `[]` is not
        the argument `z` of `t` must be of type integer or null, and `x` is not
        the argument `o` of `t` must be of type object, and `{"a":1},"b":{}` is not
        "#);
        assert!(given("x:={").is_err() && given("x").is_err());
    }

    fn checked(schema: &str, given: &[&str]) -> String {
        let checked = tool(schema).check("t", given.iter().copied());
        checked.map_or_else(|failure| failure.to_string(), |()| "good".into())
    }

    #[test]
    fn missing_and_unknown_arguments_are_named_with_what_is_taken() {
        let listed = r#"{"properties":{"a":{"type":"string"},"b":{}},"required":["a"]}"#;
        let all = [
            checked(listed, &["a"]),
            checked(listed, &["b"]),
            checked(listed, &["a", "c", "d"]),
            checked(listed, &["c"]),
            checked(r#"{"additionalProperties":false}"#, &["c"]),
            checked(r#"{"properties":{}}"#, &["c"]),
            checked(r#"{"properties":{"a":{}},"additionalProperties":{}}"#, &["c"]),
            checked(r#"{"required":["a"]}"#, &[]),
        ];
        assert_snapshot!(all.join("\n"), @r"
        good
        `t` needs `a`; it takes `a` (string, required), `b`
        `t` does not take `c`, `d`; it takes `a` (string, required), `b`
        `t` needs `a` and does not take `c`; it takes `a` (string, required), `b`
        `t` does not take `c`; it takes no arguments
        good
        good
        `t` needs `a`; it takes `a` (required)
        ");
        let prompt = r#"{"arguments":[{"name":"who","required":true},{"name":"how"}]}"#;
        let takes = Takes::of_prompt(&Object::parse(prompt).expect("an object"));
        let failure = takes.check("p", ["whom"].into_iter()).expect_err("unknown").to_string();
        assert_eq!(
            failure,
            "`p` needs `who` and does not take `whom`; it takes `who` (required), `how`"
        );
    }
}
