//! Completions that every client reads.
//!
//! Spec, completion: at most 100 values in a result. The official readers refuse one that has more, or whose values are not
//! all strings. One that is too long is cut and says that there is more, what only decorates it is removed if it is malformed,
//! and any other that cannot be read is an error.

use crate::json::{self, Object};
use crate::mcp::definition::shape;

/// How many values a completion may have (spec, completion, implementation considerations).
pub(super) const MAX_VALUES: usize = 100;

/// Looks at a completion, which was read and is perhaps rewritten; returns what is passed on in its place, if it does not stay.
pub(super) fn conform(read: &Object, new: Option<&[u8]>) -> Result<Option<Vec<u8>>, &'static str> {
    // A result that asks for something first is none yet.
    if read.get("resultType").is_some_and(|kind| kind != "\"complete\"") {
        return Ok(None);
    }
    let rewritten = new.map(|new| Object::parse_within(new.to_vec().into(), usize::MAX));
    let mut result = match rewritten {
        Some(result) => result.map_err(|_| "it is no JSON object")?,
        None => read.clone(),
    };
    let mut completion = result.get_object("completion").ok_or("`completion` is no object")?;
    if !shape::is_readable(&completion.to_bytes()) {
        return Err("`completion` has half a pair of surrogates, or a number that is too large");
    }
    // Walked, not collected: an array of some megabytes may have millions of values.
    let values = completion.get_elements("values").ok_or("`values` is no array")?;
    let mut count = 0;
    for value in values.clone() {
        if !value.starts_with(b"\"") {
            return Err("a value is no string");
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

/// Whether a number is whole, however it is written, and one that every reader can count with.
fn is_whole(raw: &str) -> bool {
    const MAX: f64 = 9_007_199_254_740_991.0;
    raw.parse().is_ok_and(|number: f64| (0.0..=MAX).contains(&number) && number.fract() == 0.0)
}
