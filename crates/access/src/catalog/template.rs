//! Matching of URIs against URI templates (RFC 6570).
//!
//! Values are not extracted: the match only decides which upstream owns a URI. `{x}` stands for a
//! run of at least one character other than `/`; an expression with an operator, such as `{+x}`,
//! `{/x*}` or `{?q}`, stands for any run, the empty one included. A literal stands for itself, as
//! it is or with the characters percent-encoded that no URI may contain (section 3.1).
//!
//! Invariant: the cost is at most the product of the lengths of template and URI, without
//! backtracking, and a caller can bound it over many templates.

use super::expansion::{encode_literals, sample};
use weir_mcp::uri::CanonicalUri;

/// Maximum cost of matching one URI against the templates of one upstream: far more than real
/// templates need, and about a millisecond.
pub const MAX_STEPS: usize = 1 << 20;

/// Whether `template` could yield `uri`. Subtracts the cost from `steps`; if they do not suffice
/// the result is `false`.
pub fn matches(template: &str, uri: &str, steps: &mut usize) -> bool {
    matches_as_written(template, uri, steps)
        || encode_literals(template).is_some_and(|encoded| matches_as_written(&encoded, uri, steps))
}

/// Whether a URI that a template yields could be requested: some samples are tried.
pub fn is_usable(template: &str) -> bool {
    SAMPLES.into_iter().filter_map(|value| sample(template, value)).any(|uri| {
        CanonicalUri::parse(&uri).is_ok() && matches(template, &uri, &mut MAX_STEPS.clone())
    })
}

/// Values of all variables in samples: a host or segment, a port, and a URI.
const SAMPLES: [&str; 3] = ["a", "1", "a:b/c"];

fn matches_as_written(template: &str, uri: &str, steps: &mut usize) -> bool {
    // Most templates differ in their first characters, which is a cheap check.
    let head = template.find('{').unwrap_or(template.len());
    if !spend(steps, head + 1) || !uri.starts_with(&template[..head]) {
        return false;
    }
    let Some(rest) = template.get(head..).filter(|rest| !rest.is_empty()) else {
        return uri.len() == head;
    };
    let text = &uri.as_bytes()[head..];
    // For each position in `text`, whether the pieces so far can end there.
    let mut positions = vec![false; text.len() + 1];
    positions[0] = true;
    for piece in Pieces(rest) {
        let Some(piece) = piece else { return false };
        let reached = positions.iter().filter(|position| **position).count();
        let cost = match piece {
            Piece::Literal(literal) => reached * literal.len(),
            Piece::Segment | Piece::Any => 0,
        };
        if reached == 0 || !spend(steps, text.len() + 1 + cost) {
            return false;
        }
        piece.advance(text, &mut positions);
    }
    positions[text.len()]
}

fn spend(steps: &mut usize, cost: usize) -> bool {
    let left = steps.checked_sub(cost);
    *steps = left.unwrap_or(0);
    left.is_some()
}

/// Piece of a template.
enum Piece<'a> {
    Literal(&'a [u8]),
    /// One character or more, none of them `/`.
    Segment,
    Any,
}

impl Piece<'_> {
    /// Replaces the possible positions before this piece by those after it.
    fn advance(&self, text: &[u8], positions: &mut [bool]) {
        match self {
            Self::Literal(literal) => {
                // From the end, so that a position is read before it is overwritten.
                for end in (0..positions.len()).rev() {
                    let start = end.checked_sub(literal.len());
                    positions[end] = start
                        .is_some_and(|start| positions[start] && text[start..end] == **literal);
                }
            }
            Self::Segment => {
                let mut running = false;
                // The end of the text ends a run like a slash does.
                for (position, byte) in positions.iter_mut().zip(text.iter().chain(b"/")) {
                    let starts = std::mem::replace(position, running);
                    running = *byte != b'/' && (running || starts);
                }
            }
            Self::Any => {
                let mut reached = false;
                for position in positions {
                    reached |= *position;
                    *position = reached;
                }
            }
        }
    }
}

/// Iterator over the pieces of a template; yields `None` for a malformed one.
struct Pieces<'a>(&'a str);

impl<'a> Iterator for Pieces<'a> {
    type Item = Option<Piece<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let Some(expression) = self.0.strip_prefix('{') else {
            let (literal, rest) = self.0.split_at(self.0.find('{').unwrap_or(self.0.len()));
            self.0 = rest;
            return (!literal.is_empty()).then_some(Some(Piece::Literal(literal.as_bytes())));
        };
        let Some((expression, rest)) = expression.split_once('}') else {
            self.0 = "";
            return Some(None);
        };
        self.0 = rest;
        Some(match expression.as_bytes() {
            // Section 2.2: these operators are reserved, and their expansion is undefined.
            [] | [b'=' | b',' | b'!' | b'@' | b'|', ..] => None,
            [b'+' | b'#' | b'.' | b'/' | b';' | b'?' | b'&', ..] => Some(Piece::Any),
            _ => Some(Piece::Segment),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(template: &str, uri: &str) -> bool {
        matches(template, uri, &mut MAX_STEPS.clone())
    }

    #[test]
    fn a_plain_expression_is_a_segment_and_one_with_an_operator_anything() {
        for (template, uri, expected) in [
            ("note:///{id}", "note:///7", true),
            ("note:///{id}", "note:///", false),
            ("note:///{id}", "note:///7/8", false),
            ("note:///{id}/x", "note:///7/x", true),
            ("note:///{id}", "todo:///7", false),
            ("file:///{+path}", "file:///a/b", true),
            ("file:///{+path}", "file:///", true),
            ("https://h{/path*}{?q,r}", "https://h/a/b?q=1", true),
            ("https://h{/path*}{?q,r}", "https://h", true),
            ("h:/{x}{.kind}", "h:/a.json", true),
            ("h:/{x}{;p}{&q}{#f}", "h:/a", true),
            ("h:/{a}-{b}", "h:/1-2-3", true),
            ("h:/{a}-{b}", "h:/1-", false),
            ("h:/{x:3}/{y*}", "h:/abc/d", true),
            ("h:/plain", "h:/plain", true),
            ("h:/plain", "h:/plainer", false),
            ("h:/{x}", "h:/\u{e9}", true),
            ("h:/a b/\u{e9}/{x}", "h:/a%20b/%C3%A9/1", true),
            ("h:/{x}|\"{y}", "h:/1%7C%222", true),
            ("h:/a%20b/{x}", "h:/a%20b/1", true),
            ("h:/a%20b/{x}", "h:/a b/1", false),
        ] {
            assert_eq!(check(template, uri), expected, "{template} for {uri}");
        }
    }

    #[test]
    fn what_is_no_template_matches_nothing() {
        for (template, uri) in [("a:{", "a:{"), ("a:{}", "a:x"), ("a:{!x}", "a:x"), ("a:{x", "a:x")]
        {
            assert!(!check(template, uri), "{template}");
        }
    }

    #[test]
    fn template_is_usable_if_a_sample_of_it_can_be_requested() {
        for usable in [
            "note:///{id}",
            "file:///{+path}",
            "https://h{/path*}{?q,r}",
            "https://{host}:{port}/",
            "x:{a}",
            "{+any}",
            "{scheme}:///x",
            "db:///a b/{x:3}",
            "note:///fixed",
            "repo://{owner}/{name}/contents{/path*}",
        ] {
            assert!(is_usable(usable), "{usable}");
        }
        for unusable in [
            "FILE:///{x}",
            "http://h//a/{x}",
            "note:///../{x}",
            "note:///{!x}",
            "note:///{}",
            "{x}",
        ] {
            assert!(!is_usable(unusable), "{unusable}");
        }
    }

    #[test]
    fn outrageous_templates_run_out_of_steps() {
        let uri = format!("a:{}", "a".repeat(2_000));
        let template = format!("a:{}b", "{+x}a".repeat(400));
        let mut steps = MAX_STEPS;
        assert!(!matches(&template, &uri, &mut steps));
        assert!(!matches("a:{+x}", &uri, &mut 10));
        let mut none = 0;
        assert!(!matches("a:", "a:", &mut none));
    }

    proptest! {
        #[test]
        fn matching_agrees_with_the_slow_definition(
            pieces in prop::collection::vec(
                prop_oneof![Just("{x}"), Just("{+x}"), Just("a"), Just("b/"), Just("/"), Just("ab")],
                0..7,
            ),
            uri in "[ab/]{0,9}",
        ) {
            fn slow(pieces: &[&str], uri: &str) -> bool {
                let Some((piece, rest)) = pieces.split_first() else { return uri.is_empty() };
                match *piece {
                    "{x}" => (1..=uri.len())
                        .any(|n| !uri[..n].contains('/') && slow(rest, &uri[n..])),
                    "{+x}" => (0..=uri.len()).any(|n| slow(rest, &uri[n..])),
                    literal => uri.strip_prefix(literal).is_some_and(|after| slow(rest, after)),
                }
            }
            prop_assert_eq!(check(&pieces.concat(), &uri), slow(&pieces, &uri));
        }

        #[test]
        fn no_text_makes_the_matcher_panic(template in "[{}a/+é]{0,12}", uri in "[a/é]{0,12}") {
            check(&template, &uri);
        }
    }
}
