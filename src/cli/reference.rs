//! Commands that describe the program itself: `completions`, `help`, `man`, `schema`, `version`;
//! and corrections of command lines that cannot be parsed.

pub(crate) mod command_groups;
pub(crate) mod completions;
pub(crate) mod corrections;
pub(crate) mod help;
pub(crate) mod man;
pub(crate) mod schema;
pub(crate) mod version;
