//! Checks of the repository's structure: crates, headers, sizes, words, and that the documents
//! match the code.
//!
//! Invariant: a check that reads files fails if it finds none, so that none passes because the
//! files have moved.

#[path = "tidy/architecture.rs"]
mod architecture;
#[path = "tidy/attacks.rs"]
mod attacks;
#[path = "tidy/bounds.rs"]
mod bounds;
#[path = "tidy/claims.rs"]
mod claims;
#[path = "tidy/crates.rs"]
mod crates;
#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/faults.rs"]
mod faults;
#[path = "tidy/files.rs"]
mod files;
#[path = "tidy/imports.rs"]
mod imports;
#[path = "tidy/paths.rs"]
mod paths;
#[path = "tidy/places.rs"]
mod places;
#[path = "tidy/sizes.rs"]
mod sizes;
#[path = "tidy/test_names.rs"]
mod test_names;
#[path = "tidy/types.rs"]
mod types;
#[path = "tidy/words.rs"]
mod words;

fn fail_if_any(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}
