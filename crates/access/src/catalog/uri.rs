//! Origin of a URI: the scheme and authority by which an unlisted URI is routed to an upstream.
//!
//! Comparison is bytewise, as everywhere in the catalog: a client must use the upstream's case.

use std::sync::Arc;

use super::item::ExportedItem;

/// Scheme and authority of a URI (RFC 3986, section 3).
pub(super) struct UriOrigin<'a> {
    /// `scheme://authority`, or `scheme:` without an authority.
    text: &'a str,
    has_authority: bool,
}

impl<'a> UriOrigin<'a> {
    /// The origin of a URI; `None` without a scheme.
    pub(super) fn of(uri: &'a str) -> Option<Self> {
        let colon = uri.find(':')?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        let scheme = &uri[..colon];
        if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.chars().all(allowed) {
            return None;
        }
        match uri[colon + 1..].strip_prefix("//") {
            None => Some(Self { text: &uri[..=colon], has_authority: false }),
            Some(rest) => {
                let authority = rest.find(['/', '?', '#']).unwrap_or(rest.len());
                let end = uri.len() - rest.len() + authority;
                Some(Self { text: &uri[..end], has_authority: true })
            }
        }
    }

    /// Whether one of these rows, which are sorted by key, has the same origin. Uses a few binary
    /// searches.
    pub(super) fn has_origin_in(&self, rows: &[Arc<ExportedItem>]) -> bool {
        let text = self.text;
        if self.has_authority {
            // These characters may follow an authority, in a URI and in a template.
            return rows.binary_search_by(|row| (*row.key).cmp(text)).is_ok()
                || ["/", "?", "#", "{/", "{?", "{#"].iter().any(|next| {
                    let head = format!("{text}{next}");
                    begins_with(first_from(rows, &head), &head)
                });
        }
        // Rows with an authority sort between those without: `s://` up to `s:/0`.
        let before = first_from(rows, text).filter(|row| !row.key[text.len()..].starts_with("//"));
        begins_with(before, text) || begins_with(first_from(rows, &format!("{text}/0")), text)
    }
}

fn first_from<'r>(rows: &'r [Arc<ExportedItem>], key: &str) -> Option<&'r Arc<ExportedItem>> {
    rows.get(rows.partition_point(|row| *row.key < *key))
}

fn begins_with(row: Option<&Arc<ExportedItem>>, head: &str) -> bool {
    row.is_some_and(|row| row.key.starts_with(head))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;
    use weir_mcp::kind::Kind;

    fn rows(keys: &[String]) -> Vec<Arc<ExportedItem>> {
        let mut keys = keys.to_vec();
        keys.sort();
        let target = |key: &String| ExportedItem {
            kind: Kind::Resource,
            upstream: "a".parse().expect("a name"),
            own: key.as_str().into(),
            key: key.as_str().into(),
            equivalence_form: None,
            json: Bytes::new(),
            older_json: None,
            param_headers: None,
            needs_task: false,
            prompt_arguments: None,
        };
        keys.iter().map(target).map(Arc::new).collect()
    }

    #[test]
    fn an_origin_ends_where_the_authority_does() {
        let check = |uri: &str, expected: Option<&str>| {
            assert_eq!(UriOrigin::of(uri).map(|origin| origin.text), expected, "{uri}");
        };
        check("https://h:1/a", Some("https://h:1"));
        check("https://h?q", Some("https://h"));
        check("file:///a", Some("file://"));
        check("urn:a:b", Some("urn:"));
        for no_uri in ["", "a", "/a:b", ":a", "1a:b", "a b:c"] {
            check(no_uri, None);
        }
    }

    #[test]
    fn an_origin_is_found_among_uris_and_templates() {
        let check = |uri: &str, key: &str, expected: bool| {
            let origin = UriOrigin::of(uri).expect(uri);
            assert_eq!(origin.has_origin_in(&rows(&[key.into()])), expected, "{uri} in {key}");
        };
        check("https://h/a", "https://h/b", true);
        check("https://h/a", "https://h", true);
        check("https://h/a", "https://h{/path*}", true);
        check("https://h/a", "https://h-2/b", false);
        check("https://h/a", "http://h/a", false);
        check("https://h/a", "https://{host}/a", false);
        check("note:a", "note:b", true);
        check("note:a", "note://b", false);
        check("note:///a", "note:///{id}", true);
    }

    proptest! {
        #[test]
        fn searching_finds_what_comparing_one_by_one_finds(
            uri in "[ab]:(//[ab-]?)?[/?a0-]{0,3}",
            keys in prop::collection::vec("[ab]:(//[ab-]?)?[/?a0-]{0,3}", 0..8),
        ) {
            let origin = UriOrigin::of(&uri).expect("a scheme");
            let same = |key: &String| UriOrigin::of(key).expect("a scheme").text == origin.text;
            prop_assert_eq!(origin.has_origin_in(&rows(&keys)), keys.iter().any(same));
        }
    }
}
