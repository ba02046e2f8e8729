//! Arguments from the command line, checked against the parameters of prompts and tools.
//!
//! A tool's input schema decides which JSON type a typed text becomes; where the schema has no
//! type, only unambiguous JSON is recognized. JSON is passed on as it was typed.
//!
//! Only the names and types of an object's properties are read from the schema. The tool may still
//! reject a value of the right type.

use bytes::Bytes;

use crate::cli::exit::Failure;
use crate::cli::output::render::{object_elements, sanitize_line};
use weir_base::json::{self, Object};

/// Argument as it was typed.
#[derive(Debug, Clone)]
pub(crate) struct TypedArgument {
    pub(crate) name: String,
    value: ArgumentValue,
}

#[derive(Debug, Clone)]
enum ArgumentValue {
    /// `NAME=TEXT`
    Text(String),
    /// `NAME:=JSON`
    Json(Bytes),
}

/// Parses `NAME=TEXT`.
pub(crate) fn parse_pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected ARGUMENT=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Parses `NAME=TEXT` or `NAME:=JSON`.
pub(crate) fn parse_argument(text: &str) -> Result<TypedArgument, String> {
    // The form of many other programs. It may contain a `=`.
    if Object::parse(text.to_owned()).is_ok() {
        return Err("a JSON object of all arguments follows --args".to_owned());
    }
    let (name, value) =
        parse_pair(text).map_err(|expected| format!("{expected} or ARGUMENT:=JSON"))?;
    let Some(name) = name.strip_suffix(':') else {
        return Ok(TypedArgument { name, value: ArgumentValue::Text(value) });
    };
    let json = JsonText::read(&value).ok_or("what follows := is not JSON")?;
    Ok(TypedArgument { name: name.to_owned(), value: ArgumentValue::Json(json.text) })
}

/// Parameters of a prompt or a tool.
#[derive(Debug)]
pub(crate) struct AcceptedArguments {
    parameters: Vec<Parameter>,
    /// Other names are accepted as well.
    open: bool,
}

#[derive(Debug)]
struct Parameter {
    name: String,
    required: bool,
    /// Names of its JSON types; empty if the schema has none.
    types: Vec<String>,
    /// Allowed texts, if the schema has an `enum`.
    choices: Vec<String>,
}

impl AcceptedArguments {
    /// Reads the parameters of a listed prompt; all are texts.
    pub(crate) fn of_prompt(definition: &Object) -> Self {
        let parameter = |argument: &Object| Parameter {
            name: argument.get_string("name").unwrap_or_default().into_owned(),
            required: argument.get("required") == Some("true"),
            types: Vec::new(),
            choices: Vec::new(),
        };
        let parameters = object_elements(definition, "arguments").iter().map(parameter).collect();
        Self { parameters, open: false }
    }

    /// Reads the parameters of a listed tool.
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
        // A schema may require a name that has no property.
        let without_property = required.iter().filter(|name| !properties.has(name));
        parameters.extend(without_property.map(|name| parameter(name)));
        let open = match schema.get("additionalProperties") {
            Some("false") => schema.has("patternProperties"),
            Some(_) => true,
            None => properties.is_empty() || schema.has("patternProperties"),
        };
        Self { parameters, open }
    }

    /// Fails if an argument is unknown, or if a required one is missing although all are given.
    pub(crate) fn check<'a>(
        &self,
        item: &str,
        given: impl IntoIterator<Item = &'a str>,
        all_are_given: bool,
    ) -> Result<(), Failure> {
        let given: Vec<&str> = given.into_iter().collect();
        let required = self.parameters.iter().filter(|it| all_are_given && it.required);
        let required = required.map(|parameter| parameter.name.as_str());
        let missing = names(required.filter(|name| !given.contains(name)));
        let known = |name: &str| self.parameters.iter().any(|parameter| parameter.name == name);
        let unknown = given.iter().copied().filter(|name| !self.open && !known(name));
        let wrong = match (names(unknown).as_str(), missing.as_str()) {
            ("", "") => return Ok(()),
            (unknown, "") => format!("does not take {unknown}"),
            ("", missing) => format!("needs {missing}"),
            (unknown, missing) => format!("needs {missing} and does not take {unknown}"),
        };
        Err(Failure::Usage(format!("`{item}` {wrong}; {}", self.to_words())))
    }

    /// Converts an argument to JSON of the parameter's type.
    pub(crate) fn value(&self, item: &str, given: &TypedArgument) -> Result<Bytes, Failure> {
        let text = match &given.value {
            ArgumentValue::Json(json) => return Ok(json.clone()),
            ArgumentValue::Text(text) => text,
        };
        let parameter = self.parameters.iter().find(|parameter| parameter.name == given.name);
        let value = match parameter {
            Some(parameter) => parameter.value(text),
            None => Some(guess_json(text)),
        };
        value.ok_or_else(|| {
            let types = parameter.map(Parameter::to_type).unwrap_or_default();
            Failure::Usage(format!(
                "the argument `{}` of `{item}` must be of type {types}, and `{}` is not",
                given.name,
                sanitize_line(text)
            ))
        })
    }

    fn to_words(&self) -> String {
        let word = |parameter: &Parameter| {
            let about = [parameter.to_type(), String::from("required")];
            let about = about.into_iter().take(1 + usize::from(parameter.required));
            let about: Vec<_> = about.filter(|text| !text.is_empty()).collect();
            match about.is_empty() {
                true => format!("`{}`", sanitize_line(&parameter.name)),
                false => format!("`{}` ({})", sanitize_line(&parameter.name), about.join(", ")),
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
        sanitize_line(&self.types.join(" or "))
    }

    /// Converts a text to JSON of this type; `None` if that is impossible.
    fn value(&self, text: &str) -> Option<Bytes> {
        if self.choices.iter().any(|choice| choice == text) {
            return Some(json::quote(text));
        }
        if !self.types.iter().all(|one| TYPES.contains(&one.as_str())) || self.types.is_empty() {
            return Some(guess_json(text));
        }
        let takes_text = self.types.iter().any(|one| one == "string");
        if takes_text && self.types.len() == 1 {
            return Some(json::quote(text));
        }
        let json = JsonText::read(text).filter(|json| self.types.iter().any(|one| json.is(one)));
        match json {
            // If a string is allowed, `null` is that string.
            Some(json) if !(takes_text && json.is("null")) => Some(json.text),
            _ => takes_text.then(|| json::quote(text)),
        }
    }
}

/// Returns JSON if the text is a number, a boolean, an object or an array; else a JSON string.
fn guess_json(text: &str) -> Bytes {
    let json = JsonText::read(text).filter(|json| !json.is("null") && !json.is("string"));
    json.map_or_else(|| json::quote(text), |json| json.text)
}

/// Types of JSON Schema.
const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];

/// Valid JSON text.
struct JsonText {
    text: Bytes,
}

impl JsonText {
    fn read(text: &str) -> Option<Self> {
        // The text is parsed inside an object, so that the one JSON parser with its limits is used.
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
            // JSON Schema, since draft 6: 1.0 is an integer as well.
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
    names.map(|name| format!("`{}`", sanitize_line(name))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use crate::cli::query::arguments::*;
    use insta::assert_snapshot;

    fn tool(schema: &str) -> AcceptedArguments {
        let definition = format!(r#"{{"name":"t","inputSchema":{schema}}}"#);
        AcceptedArguments::of_tool(&Object::parse(definition).expect("an object"))
    }

    const TYPED: &str = r#"{"properties":{
        "s":{"type":"string"},"n":{"type":"number"},"i":{"type":"integer"},"b":{"type":"boolean"},
        "a":{"type":"array"},"o":{"type":"object"},"u":{"type":["integer","string"]},
        "m":{"type":["string","null"]},"z":{"type":["integer","null"]},"x":{},
        "e":{"enum":["1","2"]},"w":{"type":"wavelength"}},"required":["s"]}"#;

    fn value(argument: &str) -> String {
        let given = parse_argument(argument).expect(argument);
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
        assert!(parse_argument("x:={").is_err() && parse_argument("x").is_err());
    }

    #[test]
    fn an_object_in_place_of_an_argument_is_answered_with_the_option_for_it() {
        for text in [r#"{"a":1}"#, r#" {"a":"x=y"} "#] {
            let refused = parse_argument(text).expect_err("an object");
            assert!(refused.contains("follows --args"), "{refused}");
        }
        assert!(parse_argument("{a}=1").is_ok());
    }

    fn checked(schema: &str, given: &[&str]) -> String {
        let checked = tool(schema).check("t", given.iter().copied(), true);
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
        let takes = AcceptedArguments::of_prompt(&Object::parse(prompt).expect("an object"));
        let failure = takes.check("p", ["whom"], true).expect_err("unknown").to_string();
        assert_eq!(
            failure,
            "`p` needs `who` and does not take `whom`; it takes `who` (required), `how`"
        );
    }
}
