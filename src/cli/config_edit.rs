//! Commands that change the files of a configuration.

pub(super) mod keys;
