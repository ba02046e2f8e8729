//! Text and its framing: encodings, quoting, lines and server-sent events.

pub mod hex;
pub mod invisible_chars;
pub mod line_codec;
pub mod quote;
pub mod shell_word;
pub mod sse;
pub mod terminal_styles;
