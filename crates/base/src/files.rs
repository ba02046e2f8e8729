//! Files: opened without blocking, private, and watched.

pub mod folder_watch;
pub mod private_file;
pub mod regular_file;
