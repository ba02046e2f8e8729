//! Secrets: texts that are never displayed, sealing, hashes and keys.

pub mod pem;
pub mod sealing;
pub mod secret;
pub mod secret_parts;
pub mod secret_search;
pub(crate) mod secret_spelling;
pub mod sha256;
