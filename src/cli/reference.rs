//! Commands that describe the program itself: `completions`, `help`, `schema`, `version`.

pub(crate) mod command_groups;
pub(crate) mod completions;
pub(crate) mod help;
pub(crate) mod schema;
pub(crate) mod version;
