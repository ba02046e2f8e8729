//! Tests of the tables with definitions; `tests/interop` tests them with real clients.

use crate::definition::shape::*;

fn conformed(kind: Kind, text: &str) -> Result<Option<String>, String> {
    let definition = Object::parse(text.to_owned()).expect(text);
    let key = definition.get_string(kind.key_member()).expect("a key").into_owned();
    let new = conform(kind, &key, &definition).map_err(|bad| bad.to_string())?;
    if let Some(new) = &new {
        assert_eq!(conform(kind, &key, new), Ok(None), "what was mended fits: {text}");
    }
    Ok(new.map(|new| String::from_utf8_lossy(&new.to_bytes()).into_owned()))
}

#[test]
fn definition_that_fits_keeps_every_byte() {
    for (kind, text) in [
        (
            Kind::Tool,
            r#"{"name":"a","inputSchema":{ "type" : "obj\u0065ct","properties":{"x":true,"y":{"n":1e300}},"required":["y"]},"outputSchema":{"type":"array"},"annotations":{"readOnlyHint":false,"novel":7},"execution":{"taskSupport":"optional"},"novel":[null]}"#,
        ),
        (
            Kind::Prompt,
            r#"{"name":"a","title":"\ud83d\ude00","arguments":[{"name":"x","required":true,"default":7}]}"#,
        ),
        (
            Kind::Resource,
            r#"{"uri":"file:///a b/é","name":"","mimeType":"x","size":9007199254740993,"annotations":{"audience":["user","assistant"],"priority":0.50,"lastModified":"2025-01-12T15:00:58Z"},"icons":[{"src":"data:image/png;base64,AA==","theme":"dark","sizes":["any"]}]}"#,
        ),
        (Kind::Template, r#"{"uriTemplate":"a:///{path}{?q*}","name":"n","_meta":{"x":1.0}}"#),
        (
            Kind::Tool,
            r#"{"name":"a","inputSchema":{"type":"object","required":[],"properties":{"x":{"default":[],"enum":[[]],"items":[]}}},"icons":[],"_meta":{"x":[]},"novel":[]}"#,
        ),
        (Kind::Prompt, r#"{"name":"a","arguments":[],"_meta":{}}"#),
        (Kind::Resource, r#"{"uri":"a:b","name":"n","annotations":{"audience":[]}}"#),
    ] {
        assert_eq!(conformed(kind, text), Ok(None), "{text}");
    }
}

#[test]
fn definition_is_mended_where_that_is_safe() {
    for (kind, text, expected) in [
        (Kind::Tool, r#"{"name":"a"}"#, r#"{"name":"a","inputSchema":{"type":"object"}}"#),
        (
            Kind::Tool,
            r#"{"name":"a","inputSchema":null}"#,
            r#"{"name":"a","inputSchema":{"type":"object"}}"#,
        ),
        (
            Kind::Tool,
            r#"{"name":"a","inputSchema":{"properties":null}}"#,
            r#"{"name":"a","inputSchema":{"type":"object"}}"#,
        ),
        (
            Kind::Tool,
            r#"{"name":"a","title":null,"inputSchema":{"type":"object"},"outputSchema":7,"annotations":{"title":null,"x":null},"icons":"x"}"#,
            r#"{"name":"a","inputSchema":{"type":"object"},"annotations":{"x":null}}"#,
        ),
        (
            Kind::Prompt,
            r#"{"name":"a","arguments":[{"name":"x","title":null},{"name":"y"}]}"#,
            r#"{"name":"a","arguments":[{"name":"x"},{"name":"y"}]}"#,
        ),
        (Kind::Resource, r#"{"uri":"a:b","size":-1}"#, r#"{"uri":"a:b","name":"a:b"}"#),
        (
            Kind::Resource,
            r#"{"uri":"a:b","name":"n","annotations":{"lastModified":"2025-01-12"}}"#,
            r#"{"uri":"a:b","name":"n","annotations":{}}"#,
        ),
        (
            Kind::Template,
            r#"{"uriTemplate":"a:{b}","name":null,"icons":[{"src":"x"}]}"#,
            r#"{"uriTemplate":"a:{b}","name":"a:{b}"}"#,
        ),
    ] {
        assert_eq!(conformed(kind, text), Ok(Some(expected.to_owned())), "{text}");
    }
}

#[test]
fn empty_array_in_place_of_an_object_becomes_an_empty_object() {
    for (kind, text, expected) in [
        (
            Kind::Tool,
            r#"{"name":"a","inputSchema":[],"annotations":[],"execution":[],"_meta":[ ],"outputSchema":[]}"#,
            r#"{"name":"a","inputSchema":{"type":"object"},"annotations":{},"execution":{},"_meta":{},"outputSchema":{}}"#,
        ),
        (
            Kind::Tool,
            r#"{"name":"a","inputSchema":{"type":"object","properties":[]},"outputSchema":{"type":"object","properties":{"x":{"additionalProperties":[]}}}}"#,
            r#"{"name":"a","inputSchema":{"type":"object","properties":{}},"outputSchema":{"type":"object","properties":{"x":{"additionalProperties":{}}}}}"#,
        ),
        (
            Kind::Tool,
            r#"{"name":"a","inputSchema":{"properties":{"x":[],"y":{"properties":[],"default":[]}}}}"#,
            r#"{"name":"a","inputSchema":{"properties":{"x":{},"y":{"properties":{},"default":[]}},"type":"object"}}"#,
        ),
        (Kind::Prompt, r#"{"name":"a","_meta":[]}"#, r#"{"name":"a","_meta":{}}"#),
        (
            Kind::Resource,
            r#"{"uri":"a:b","name":"n","annotations":[],"_meta":[],"inputSchema":[]}"#,
            r#"{"uri":"a:b","name":"n","annotations":{},"_meta":{},"inputSchema":[]}"#,
        ),
        (
            Kind::Template,
            r#"{"uriTemplate":"a:{b}","name":"n","annotations":[]}"#,
            r#"{"uriTemplate":"a:{b}","name":"n","annotations":{}}"#,
        ),
    ] {
        assert_eq!(conformed(kind, text), Ok(Some(expected.to_owned())), "{text}");
    }
}

#[test]
fn unreadable_output_schema_and_icons_are_left_out_before_the_item_is() {
    for (text, expected) in [
        (
            r#"{"name":"a","inputSchema":{"type":"object"},"outputSchema":{"title":"\ud800"},"icons":[]}"#,
            Ok(r#"{"name":"a","inputSchema":{"type":"object"},"icons":[]}"#),
        ),
        (
            r#"{"name":"a","inputSchema":{"type":"object"},"outputSchema":{},"icons":[{"src":"a:b","x":1e400}]}"#,
            Ok(r#"{"name":"a","inputSchema":{"type":"object"}}"#),
        ),
        (
            r#"{"name":"a","outputSchema":{"x":1e400},"_meta":{"x":1e400}}"#,
            Err("a number is too large for a double"),
        ),
    ] {
        let expected = expected.map(|text| Some(text.to_owned())).map_err(str::to_owned);
        assert_eq!(conformed(Kind::Tool, text), expected, "{text}");
    }
}

#[test]
fn repairs_are_described_by_member() {
    let described = |text: &str| {
        let old = Object::parse(text.to_owned()).expect(text);
        let new = conform(Kind::Tool, "a", &old).expect(text).expect("a repair");
        describe_repairs(&old, &new)
    };
    assert_eq!(
        described(r#"{"name":"a","annotations":[],"icons":7,"title":null}"#),
        "`annotations` is repaired, `icons` is left out, `inputSchema` is added, so that every client can read it"
    );
    assert_eq!(described(r#"{"name":"a","inputSchema":{"type":"object"},"title":null}"#), "");
}

#[test]
fn malformed_definition_is_named_by_its_member() {
    for (kind, text, expected) in [
        (Kind::Tool, r#"{"name":"a","title":7}"#, "`title` is not a string"),
        (Kind::Tool, r#"{"name":"a","inputSchema":[7]}"#, "`inputSchema` is not an object"),
        (Kind::Tool, r#"{"name":"a","annotations":[[]]}"#, "`annotations` is not an object"),
        (Kind::Prompt, r#"{"name":"a","arguments":[[]]}"#, "`name` in `arguments` is missing"),
        (
            Kind::Tool,
            r#"{"name":"a","inputSchema":{"type":"string"}}"#,
            "`type` in `inputSchema` is not one of the values that it may have",
        ),
        (
            Kind::Tool,
            r#"{"name":"a","inputSchema":{"properties":{"x":7}}}"#,
            "an entry of `properties` in `inputSchema` is not an object or a boolean",
        ),
        (
            Kind::Tool,
            r#"{"name":"a","annotations":{"title":"x","title":"y"}}"#,
            "`annotations` is not an object without duplicate members",
        ),
        (
            Kind::Tool,
            r#"{"name":"a","annotations":{"readOnlyHint":"true"}}"#,
            "`readOnlyHint` in `annotations` is not true or false",
        ),
        (Kind::Prompt, r#"{"name":"a","arguments":{}}"#, "`arguments` is not an array"),
        (
            Kind::Prompt,
            r#"{"name":"a","arguments":[{"name":"x"},{}]}"#,
            "`name` in `arguments` is missing",
        ),
        (
            Kind::Prompt,
            r#"{"name":"a","arguments":["x"]}"#,
            "an entry of `arguments` is not an object",
        ),
        (Kind::Prompt, r#"{"name":"a","x":["\ud800"]}"#, "a string has half of a surrogate pair"),
        (Kind::Prompt, r#"{"name":"a","x":[1e400]}"#, "a number is too large for a double"),
        (Kind::Resource, r#"{"uri":"a"}"#, "`uri` is not a URI that every client reads"),
        (
            Kind::Resource,
            r#"{"uri":"a:b","annotations":{"audience":["system"]}}"#,
            "an entry of `audience` in `annotations` is not one of the values that it may have",
        ),
        (
            Kind::Resource,
            r#"{"uri":"a:b","annotations":{"priority":1.5}}"#,
            "`priority` in `annotations` is not a number from 0 to 1",
        ),
        (Kind::Template, r#"{"uriTemplate":"a:{b"}"#, "`uriTemplate` is not a URI template"),
    ] {
        assert_eq!(conformed(kind, text), Err(expected.to_owned()), "{text}");
    }
}

#[test]
fn uri_passes_if_every_reader_takes_it() {
    for good in [
        "a:",
        "a:b",
        "file:///a",
        "file:///C:/a b",
        "file://host/x",
        "file:x",
        "http://h",
        "HTTPS://u:p@h.example.:443/x?y#z",
        "http://127.0.0.1:1/",
        "http://[::1]:2",
        "urn:x:y",
        "a+b-c.d://x_y/%zz",
        "a:///",
        "a://",
        "note://ü/ü",
        "a://%41:1",
        "mailto:a@b",
        "data:,x y",
        "http:h",
        "http://1a/",
    ] {
        assert!(uri::is_uri(good), "{good}");
    }
    for bad in [
        "",
        ":",
        "a",
        "/a",
        "1a:b",
        "a b:c",
        "é:x",
        "http:",
        "http://",
        "http:///",
        "http://h:x",
        "http://h:70000",
        "http://a b",
        "http://[::1",
        "http://[x]",
        "file:\\\\a b\\c",
        "file:/\\a b/c",
        "file:\\/a b/c",
        "file:\\\\1.2.3.4.5\\x",
        "file:\\\\[x]\\y",
        "http://1.2.3.4.5/",
        "http://999.1.1.1",
        "http://a.0x1",
        "http://ü.de",
        "http://xn--/",
        "https://u@:1/",
        "a://:1",
        "a://x y",
        "a://[b]",
        "file://a b/c",
        "http://a%20b/",
        "a:\u{7}",
        "a:b\n",
        "file:///a ",
        "http://h|x/",
    ] {
        assert!(!uri::is_uri(bad), "{bad}");
    }
}

#[test]
fn timestamp_passes_if_every_reader_takes_it() {
    for good in [
        "2025-01-12T15:00:58Z",
        "2024-02-29T00:00Z",
        "2025-12-31T23:59:59.123456+05:30",
        "2000-02-29T00:00:00-23:59",
    ] {
        assert!(text::is_timestamp(good), "{good}");
    }
    for bad in [
        "",
        "2025-01-12",
        "2025-01-12T15:00:58",
        "2025-02-29T00:00:00Z",
        "1900-02-29T00:00:00Z",
        "2025-13-01T00:00:00Z",
        "2025-01-00T00:00:00Z",
        "2025-01-12 15:00:58Z",
        "2025-01-12T24:00:00Z",
        "2025-01-12T15:00:58.Z",
        "2025-01-12T15:00:58z",
        "2025-01-12T15:00:58+0530",
        "2025-1-12T15:00:58Z",
        "+025-01-12T15:00:58Z",
        "2025-01-12T15:00.5Z",
    ] {
        assert!(!text::is_timestamp(bad), "{bad}");
    }
}
