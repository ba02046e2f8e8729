//! Arguments of a request, as the audit log records them.
//!
//! Invariant: the recorded text is bounded, however much a client sends.

use super::Arguments;
use super::json_line::{MAX_FIELD_BYTES, quote};
use weir_base::json::Object;
use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::hex;

/// Returns the arguments as JSON, to the configured extent.
pub(super) fn arguments(choice: Arguments, method: &str, params: &Object) -> Option<Box<str>> {
    let member = match method {
        "tools/call" | "prompts/get" => "arguments",
        "completion/complete" => "argument",
        _ => return None,
    };
    let mut out = String::new();
    match choice {
        Arguments::None => return None,
        Arguments::Names => {
            let arguments = params.get_object(member)?;
            let names: Vec<_> = arguments.keys().collect();
            for (at, name) in names.iter().enumerate() {
                out.push(if at == 0 { '[' } else { ',' });
                if out.len() + name.len() > MAX_FIELD_BYTES {
                    let rest = format!("… ({} more)", names.len() - at);
                    quote(&mut out, &rest, MAX_FIELD_BYTES);
                    break;
                }
                quote(&mut out, name, MAX_FIELD_BYTES);
            }
            out.push_str(if names.is_empty() { "[]" } else { "]" });
        }
        Arguments::Hash => {
            let digest = sha256(params.get_bytes(member)?);
            quote(&mut out, &format!("sha256:{}", hex(&digest)), MAX_FIELD_BYTES);
        }
        Arguments::Full => quote(&mut out, params.get(member)?, MAX_ARGUMENTS_BYTES),
    }
    Some(out.into())
}

/// Longest text of arguments recorded in full.
const MAX_ARGUMENTS_BYTES: usize = 16 * 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_told_as_it_is_chosen() {
        let params = Object::parse(r#"{"name":"x","arguments":{"b":"hunter2", "\u0061":1e400}}"#)
            .expect("an object");
        let written = |choice| arguments(choice, "tools/call", &params);
        assert_eq!(written(Arguments::None), None);
        assert_eq!(written(Arguments::Names).as_deref(), Some(r#"["b","a"]"#));
        let hash = written(Arguments::Hash).expect("a hash");
        assert!(hash.starts_with("\"sha256:") && hash.len() == 73, "{hash}");
        let full = r#""{\"b\":\"hunter2\", \"\\u0061\":1e400}""#;
        assert_eq!(written(Arguments::Full).as_deref(), Some(full));
        assert_eq!(arguments(Arguments::Full, "resources/read", &params), None);
        let none = Object::new();
        assert_eq!(arguments(Arguments::Names, "tools/call", &none), None);
    }

    #[test]
    fn of_long_arguments_the_beginning_is_told() {
        let params = Object::parse(format!(r#"{{"arguments":{{"a":"{}"}}}}"#, "x".repeat(20_000)));
        let written = arguments(Arguments::Full, "tools/call", &params.expect("an object"));
        let written = written.expect("text");
        assert!(
            written.len() < MAX_ARGUMENTS_BYTES + 40 && written.ends_with(" bytes more)\""),
            "{written}"
        );
    }

    #[test]
    fn the_names_of_many_arguments_have_a_bound() {
        let members: Vec<_> = (0..500).map(|at| format!("\"argument-{at}\":0")).collect();
        let text = format!(r#"{{"arguments":{{{}}}}}"#, members.join(","));
        let written =
            arguments(Arguments::Names, "prompts/get", &Object::parse(text).expect("one"));
        let written = written.expect("names");
        assert!(written.len() < MAX_FIELD_BYTES + 40 && written.ends_with("more)\"]"), "{written}");
    }
}
