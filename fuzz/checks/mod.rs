//! What has to hold for any bytes: one function a target.
//!
//! Each takes bytes, says nothing when all is well and panics when not. They need no more than the library,
//! so that a fuzzer can be built around them; `tests/it/fuzz.rs` replays the committed inputs.

pub(crate) mod house;
mod reference;
mod text;

/// A target: what it is called, by which name its corpus lies in `corpus/`, and its check.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// Every target, D-F1 to D-F14.
pub(crate) const TARGETS: [Target; 14] = [
    ("f01_jsonrpc", text::jsonrpc),
    ("f02_lines", text::lines),
    ("f03_events", text::events),
    ("f04_header_decoded", text::header_decoded),
    ("f05_config", text::config),
    ("f06_tokens_of_our_own", text::cursor),
    ("f07_event_written", text::event_written),
    ("f08_header_written", text::header_written),
    ("f09_definition", text::definition),
    ("f10_template", text::template),
    ("f11_audit_text", text::audit_text),
    ("f12_access_token", house::access_token),
    ("f13_upstream", house::upstream),
    ("f14_door", house::door),
];
