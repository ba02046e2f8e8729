//! Properties that hold for any input: one function per fuzz target.
//!
//! Each function takes bytes and panics if a property is violated. The functions depend on the
//! library only, so that a fuzzer can use them; `tests/it/fuzz.rs` replays the committed inputs.

pub(crate) mod gateway;
mod reference;
mod text;

/// Fuzz target: its name, which is also its folder in `corpus/`, and its check.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// All targets, D-F1 to D-F14.
pub(crate) const TARGETS: [Target; 14] = [
    ("f01_jsonrpc", text::jsonrpc),
    ("f02_lines", text::lines),
    ("f03_events", text::events),
    ("f04_header_decoded", text::header_decoded),
    ("f05_config", text::config),
    ("f06_cursor", text::cursor),
    ("f07_event_written", text::event_written),
    ("f08_header_written", text::header_written),
    ("f09_definition", text::definition),
    ("f10_template", text::template),
    ("f11_audit_text", text::audit_text),
    ("f12_access_token", gateway::access_token),
    ("f13_upstream", gateway::upstream),
    ("f14_http_connection", gateway::http_connection),
];
