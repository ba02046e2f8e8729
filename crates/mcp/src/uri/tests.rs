//! Tests of canonical URIs, and of the errors for others.

use proptest::prelude::*;

use super::*;

fn check(text: &str, expected: Result<&[&str], NotCanonical>) {
    let found = CanonicalUri::parse(text);
    let found = found.as_ref().map(|uri| uri.spellings().collect::<Vec<_>>());
    assert_eq!(found.map_err(Clone::clone), expected.map(<[_]>::to_vec), "{text:?}");
}

#[test]
fn a_uri_in_normal_form_is_canonical() {
    for uri in [
        "file:///pub/a.txt",
        "file:///C:/Users/My%20Files/a.txt",
        "file:///",
        "https://h/",
        "https://a_b.h-1.org/x",
        "https://127.0.0.1/x",
        "https://[::1]/x",
        "note:///it's",
        "note:///a%2Cb%3A%C3%A9",
        "note:///%E4%BD%A0%E5%A5%BD",
        "note:///100%25",
        "note:///a..b/...c",
        "greeting://Alice",
        "greeting://Jos%C3%A9",
        "users://42/profile",
        "screen://0",
        "urn:isbn:0-395-36341-1",
        "db:a/b",
        "git+ssh://h/@scope/name",
    ] {
        let found = CanonicalUri::parse(uri).map(|found| found.readings().eq([uri]));
        assert_eq!(found, Ok(true), "{uri}");
    }
}

#[test]
fn readers_that_ignore_a_part_have_readings_of_their_own() {
    check("s://h/a?b#c", Ok(&["s://h/a?b#c", "s://h/a?b", "s://h/a"]));
    check("s://h/a%3Fb%23c", Ok(&["s://h/a%3Fb%23c", "s://h/a%3Fb", "s://h/a"]));
    check("s://h/a%EF%BC%9Fb", Ok(&["s://h/a%EF%BC%9Fb", "s://h/a"]));
    check("s://h", Ok(&["s://h", "s://h/"]));
    check("s://h/a/", Ok(&["s://h/a/", "s://h/a"]));
    check("s://h/a;x/b%3By", Ok(&["s://h/a;x/b%3By", "s://h/a/b"]));
    check("s://h:1/a/", Ok(&["s://h:1/a/", "s://h:1/a", "s://h/a/", "s://h/a"]));
    check("s://h/", Ok(&["s://h/", "s://h"]));
    check("s:a%3Fb.key?c", Ok(&["s:a%3Fb.key?c", "s:a%3Fb.key", "s:a"]));
    check("s:a%23b.key#c", Ok(&["s:a%23b.key#c", "s:a%23b.key", "s:a"]));
    check("db://p;xyz/1", Ok(&["db://p;xyz/1", "db://p/1"]));
    check("db://p;xyz/", Ok(&["db://p;xyz/", "db://p/", "db://p;xyz", "db://p"]));
    check(
        "s://h:1/?q",
        Ok(&[
            "s://h:1/?q",
            "s://h:1/",
            "s://h/?q",
            "s://h/",
            "s://h?q",
            "s://h",
            "s://h:1?q",
            "s://h:1",
        ]),
    );
}

#[test]
fn any_other_spelling_is_refused_with_its_reason() {
    use NotCanonical::*;
    for (uri, why) in [
        ("", Scheme),
        ("/a:b", Scheme),
        ("File:///a", Scheme),
        ("é:a", Scheme),
        ("s:", Empty),
        ("s://", Empty),
        ("s://?x", Empty),
        ("file:///pub/..\t/secret/b.txt", Character('\t')),
        ("file:///pub/.\n./secret/b.txt", Character('\n')),
        ("file:///pub/%2\te%2e/secret/b.txt", Character('\t')),
        ("file:///sec\tret/b.txt", Character('\t')),
        ("file:///secret\\b.txt", Character('\\')),
        ("file:///a b", Character(' ')),
        ("file:///C:/a.key::$DATA", Ambiguous(':')),
        ("note:pub/.%3F./a.txt", Segment),
        ("note:pub/%23x/a.txt", Segment),
        ("file:///x/C:/secret/b.txt", Ambiguous(':')),
        ("file:///xC:/secret/b.txt", Ambiguous(':')),
        ("file:///C%3A/secret/b.txt", Ambiguous(':')),
        ("file:///C:secret/b.txt", Ambiguous(':')),
        ("file:///C%7C/secret/b.txt", Ambiguous('|')),
        ("file:///pub/%EF%BC%9Ax", Ambiguous('：')),
        ("db:///a%C2%A5b", Ambiguous('¥')),
        (" file:///a", Scheme),
        ("file:///a\0", Character('\0')),
        ("file:///a\u{7f}", Character('\u{7f}')),
        ("file:///é", Character('é')),
        ("s:///a|b", Character('|')),
        ("s:///a[b]", Character('[')),
        ("s:///a?b[]", Character('[')),
        ("s:///a#b#c", Character('#')),
        ("https://h/?it's", Character('\'')),
        ("file:///pub/%2", Escape),
        ("s:///%c3%a9", Escape),
        ("s:///%zz", Escape),
        ("db://%73ecret/1", Superfluous(b's')),
        ("file:///pub/%2E%2E/a", Superfluous(b'.')),
        ("s:///a%2Fb", Forbidden(b'/')),
        ("s:///a%5Cb", Forbidden(b'\\')),
        ("s:///a%00", Forbidden(0)),
        ("s:///a%0Ab", Forbidden(b'\n')),
        ("s:///%252E", DoubleEncoded),
        ("db://%252%EF%BC%A6secret", DoubleEncoded),
        ("s:///%25%C2%B2F", DoubleEncoded),
        ("s:///%FF", NotUtf8),
        ("s:///%ED%A0%80", NotUtf8),
        ("s:///e%CC%81", NotNormalized),
        ("s:///%EF%BC%8F", Ambiguous('／')),
        ("s:///%EF%BC%BC", Ambiguous('＼')),
        ("s:///%E2%84%80", Ambiguous('℀')),
        ("s:///%E2%88%95", Ambiguous('∕')),
        ("s:///a%E2%80%8Bb", Ambiguous('\u{200b}')),
        ("s:///a%C2%85", Ambiguous('\u{85}')),
        ("file:////secret/b.txt", Segment),
        ("s:///a//b", Segment),
        ("s:///a/../b", Segment),
        ("s:///a/.", Segment),
        ("s:///a/..;x/b", Segment),
        ("s:///a/%20./b", Segment),
        ("s:///a/%EF%BC%8E%EF%BC%8E/b", Segment),
        ("s://../a", Segment),
        ("db:x/../y", Segment),
        ("db:..", Segment),
        ("file:///a/:x", Ambiguous(':')),
        ("file:///a?/../../b", Segment),
        ("s:///a?p=..%2Fb", Segment),
        ("s:///a#../b", Segment),
        ("https://H/a", Authority),
        ("https://u@h/a", Authority),
        ("db://u:p@h/a", Authority),
        ("db://h%3A1/a", Authority),
        ("db://h%EF%BC%9A1/a", Authority),
        ("db://u%40h/a", Authority),
        ("https://h:443/a", Authority),
        ("https://h:/a", Authority),
        ("https://h:080/a", Authority),
        ("db://h:99999/a", Authority),
        ("https://h./a", Authority),
        ("https://127.1/a", Authority),
        ("https://0x7f000001/a", Authority),
        ("https://2130706433/a", Authority),
        ("https://xn--mnchen-3ya.de/a", Authority),
        ("https://%68/a", Superfluous(b'h')),
        ("https://h%C3%A9/a", Authority),
        ("https://[::FFFF:1]/a", Authority),
        ("https://[::ffff:1.2.3.4]/a", Authority),
        ("https://h\\@evil/a", Authority),
        ("https:/h/a", Form),
        ("https:h", Form),
        ("https://h", Form),
        ("https://h?x", Form),
        ("https:///h", Form),
        ("file:/a", Form),
        ("file:a", Form),
        ("file://localhost/a", Form),
    ] {
        check(uri, Err(why));
    }
    check(&format!("s:{}", "a".repeat(MAX_URI_BYTES)), Err(TooLong));
}

#[test]
fn what_some_reader_folds_is_loosely_equal() {
    let same = |a: &str, b: &str| {
        let (one, other) = (LooseForms::of(a), LooseForms::of(b));
        one.letters == other.letters || one.shape == other.shape
    };
    for (a, b) in [
        ("u/file:///Secret/B.TXT", "u/file:///secret/b.txt"),
        ("u/db:///m%C3%BCller", "u/db:///MÜLLER"),
        ("u/db:///stra%C3%9Fe", "u/db:///STRASSE"),
        ("u/db:///a+b", "u/db:///a%20b"),
        ("u/file:///secret./b.txt%20", "u/file:///secret/b.txt"),
        ("u/db:secret", "u/db:///secret"),
        ("u/db://%20secret/1", "u/db://secret/1"),
        ("u/db:/secret", "u/db://secret"),
        ("u/https://H:443/a", "u/https://h/a"),
        ("u/file://localhost/a", "u/file:///a"),
        ("u/file:///C|/a", "u/file:///C:/a"),
        ("u/db:///%EF%BD%93ecret", "u/db:///secret"),
        ("u/db:///se%E2%80%8Dcret", "u/db:///secret"),
    ] {
        assert!(same(a, b), "{a} {b}");
    }
    assert!(!same("u/db:///a", "u/db:///b") && !same("u/https://h:1/a", "u/https://h/a"));
}

#[test]
fn a_loose_form_stands_behind_a_prefix_as_it_stands_alone() {
    for text in ["file:///C|/A/../B", "db:%20x", "https://H:443//a.", "é:Ǆ\u{301}", "s:*", ""] {
        for prefix in ["", "u/", "my-server2/"] {
            assert_eq!(
                LooseForms::of(text).behind(prefix),
                LooseForms::of(&[prefix, text].concat()),
                "{prefix}{text}"
            );
        }
    }
}

/// A value as clients expand it in templates.
fn expanded(value: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    value.bytes().map(escape).collect()
}

proptest! {
    #[test]
    fn a_canonical_uri_is_written_by_a_parser_as_it_is(
        uri in "(file|https|db|note):/{0,3}[a-cA-C0-9.;:?#@%/+~'\\[\\]-]{0,12}(%2[0-9A-F]|%C3%A9)?[a-c/]{0,3}",
    ) {
        if CanonicalUri::parse(&uri).is_ok() {
            let written = url::Url::parse(&uri).map(|url| url.to_string());
            prop_assert_eq!(written, Ok(uri));
        }
    }

    #[test]
    fn no_text_is_too_odd_to_be_judged(text in "(s:/{0,3})?\\PC{0,20}", pattern in ".{0,20}") {
        let readings = CanonicalUri::parse(&text).map(|uri| uri.spellings().count());
        prop_assert!(readings.is_err() || readings.is_ok_and(|count| (1..=80).contains(&count)));
        LooseForms::of(&pattern);
    }

    #[test]
    fn the_loose_forms_of_a_canonical_uri_are_those_of_its_spellings(
        uri in "(file|https|db|note):/{0,3}[a-cA-C0-9.;:?#@%/+~-]{0,12}(%2[0-9A-F]|%C3%A9)?[a-c/]{0,3}",
    ) {
        if let Ok(uri) = CanonicalUri::parse(&uri) {
            for (spelling, loose) in uri.spellings().zip(uri.loose()) {
                prop_assert_eq!(loose.behind("hub/"), LooseForms::of(&["hub/", spelling].concat()));
            }
        }
    }

    #[test]
    fn what_a_client_expands_a_template_with_is_canonical(value in "[a-zA-Z0-9 .,:;?!é你😀'\"(){}|<>@#&=+$^`~-]{1,20}") {
        let uri = format!("note:///n-{}", expanded(&value));
        prop_assert!(CanonicalUri::parse(&uri).is_ok(), "{}", uri);
    }
}
