//! Reader of configuration files: documents, includes, variables, typed tables, and diagnostics
//! with their locations.

pub(crate) mod diagnostics;
pub(crate) mod document;
pub(crate) mod include;
mod partly_secret;
pub(crate) mod report;
pub(crate) mod rule_locations;
pub(crate) mod secret_file;
mod secret_names;
pub(crate) mod table_reader;
pub(crate) mod value;
pub(crate) mod variables;
