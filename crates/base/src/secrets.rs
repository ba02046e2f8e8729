//! Secrets: texts that are never displayed, sealing, hashes and keys.

pub mod given_secrets;
pub mod pem;
pub mod sealing;
pub mod secret;
pub mod secret_search;
pub mod secret_shape;
pub(crate) mod secret_spelling;
pub mod sha256;
