//! The front doors as a whole.
