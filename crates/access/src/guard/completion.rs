//! Completions in the form that every client can parse.
//!
//! Spec, completion: at most 100 values in a result. The official SDKs refuse a completion with
//! more values, or with values that are not strings. A completion that is too long is truncated and
//! says that there are more values; optional members are removed if they are malformed; any other
//! malformed completion is an error.

use weir_base::json::{self, Object};
use weir_mcp::definition::shape;

/// Most values of a completion (spec, completion, implementation considerations).
pub(super) const MAX_VALUES: usize = 100;

/// Checks a parsed completion, which may have been rewritten to `new`; returns the replacement, if
/// there is one.
pub(super) fn conform(read: &Object, new: Option<&[u8]>) -> Result<Option<Vec<u8>>, &'static str> {
    // A result that requires input is not a completion yet.
    if read.get("resultType").is_some_and(|kind| kind != "\"complete\"") {
        return Ok(None);
    }
    let rewritten = new.map(|new| Object::parse_within(new.to_vec().into(), usize::MAX));
    let mut result = match rewritten {
        Some(result) => result.map_err(|_| "it is not a JSON object")?,
        None => read.clone(),
    };
    let mut completion = result.get_object("completion").ok_or("`completion` is not an object")?;
    if !shape::is_readable(&completion.to_bytes()) {
        return Err("`completion` has a lone surrogate, or a number that is too large");
    }
    // The values are not collected: an array of some megabytes may have millions of them.
    let values = completion.get_elements("values").ok_or("`values` is not an array")?;
    let mut count = 0;
    for value in values.clone() {
        if !value.starts_with(b"\"") {
            return Err("a value is not a string");
        }
        count += 1;
    }
    let mut is_mended = false;
    for (member, fits) in [
        ("total", completion.get("total").is_none_or(is_whole)),
        ("hasMore", completion.get("hasMore").is_none_or(|it| matches!(it, "true" | "false"))),
    ] {
        if !fits {
            (_, is_mended) = (completion.take(member), true);
        }
    }
    if count > MAX_VALUES {
        let first: Vec<_> = values.take(MAX_VALUES).collect();
        completion.set("values", [b"[", &first.join(&b","[..])[..], b"]"].concat());
        completion.set("hasMore", "true");
        is_mended = true;
    }
    if !is_mended {
        return Ok(None);
    }
    result.set("completion", completion.to_bytes());
    Ok(Some(json::on_one_line(result.to_bytes()).to_vec()))
}

/// Returns whether a number is an integer, in any notation, and within the exact range of a double.
fn is_whole(raw: &str) -> bool {
    const MAX: f64 = 9_007_199_254_740_991.0;
    raw.parse().is_ok_and(|number: f64| (0.0..=MAX).contains(&number) && number.fract() == 0.0)
}
