//! Built-in prompt library: prompts from a folder of Markdown files.
//!
//! The format is described in `docs/prompt-library.md`.
//!
//! Invariants: a listed prompt can be filled: every mistake in a file is found when the file is
//! read, is reported with file and line, and does not affect other files. A file that becomes
//! invalid while the library is open keeps its last valid version, since saving in mid-edit must
//! not remove a prompt. Argument texts are never expanded, and no byte comes from outside the
//! folder. [`Library::changes`] changes exactly when a client could get another response.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tasks of a test end with its runtime, and a test may read any file"
    )
)]

mod attachment;
mod beneath;
mod definition;
mod file;
mod folder;
mod front_matter;
mod loaded;
mod message_parser;
mod prompt;
mod template;
mod watch;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use loaded::LoadedPrompts;

use weir_base::tasks::sync::RwLock;

/// Folder of prompts.
#[derive(Debug)]
pub struct Library {
    dir: PathBuf,
    /// Prompts of the last reading. A request clones the `Arc` and is not affected by the next
    /// reading.
    loaded: RwLock<Arc<LoadedPrompts>>,
    /// Changed after the prompts have been replaced: a reader that sees the change sees at least
    /// these prompts.
    generation: tokio::sync::watch::Sender<u64>,
}

impl Library {
    /// Reads the folder. Mistakes in single files are logged; a missing folder is an error. Blocks
    /// on the disk.
    pub fn open(dir: &Path) -> Result<Arc<Library>, Error> {
        let unreadable = |source| Error { dir: dir.to_owned(), source };
        // The path is made absolute now, so that a later change of the working directory has no
        // effect.
        let dir = std::path::absolute(dir).map_err(unreadable)?;
        let loaded = LoadedPrompts::read(&dir, None).map_err(unreadable)?;
        loaded.log_problems(&[]);
        let (generation, _) = tokio::sync::watch::channel(0);
        Ok(Arc::new(Library { dir, loaded: RwLock::new(Arc::new(loaded)), generation }))
    }

    /// Definitions for `prompts/list`, sorted by name.
    pub fn definitions(&self) -> Vec<Bytes> {
        self.loaded().prompts().map(|prompt| prompt.definition.clone()).collect()
    }

    /// Builds the `GetPromptResult` (without `resultType`) of a prompt with these arguments.
    pub fn get(
        &self,
        name: &str,
        arguments: &BTreeMap<String, String>,
    ) -> Result<Bytes, PromptError> {
        self.loaded().find(name)?.get(arguments)
    }

    /// Builds the `CompleteResult` (without `resultType`) for an argument of a prompt: first the
    /// values that begin with the prefix, then those that contain it; case-insensitive.
    pub fn complete(&self, name: &str, argument: &str, prefix: &str) -> Result<Bytes, PromptError> {
        self.loaded().find(name)?.complete(argument, prefix)
    }

    /// Describes the mistakes of the last reading, each with file and line. A file with a mistake
    /// is not served as it stands.
    pub fn mistakes(&self) -> Vec<String> {
        self.loaded().problems.iter().map(PromptProblem::to_string).collect()
    }

    /// Watches for changes of a definition, a text or the set of prompts.
    pub fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// Reads the folder again whenever a file changes. Ends only when `stop` fires.
    ///
    /// Kernel events are handled after 100 ms, which covers a burst or an editor's save; where the
    /// kernel sends none (network folders, sub-folders), a check every 2 s finds the change. If the
    /// folder vanishes, its last prompts stay and the loss is logged once.
    pub async fn watch(self: Arc<Self>, stop: CancellationToken) {
        watch::FolderWatcher::new(self).run(stop).await;
    }

    fn loaded(&self) -> Arc<LoadedPrompts> {
        Arc::clone(&self.loaded.read())
    }

    /// Replaces the last reading.
    fn publish(&self, loaded: LoadedPrompts) {
        let loaded = Arc::new(loaded);
        let last = std::mem::replace(&mut *self.loaded.write(), Arc::clone(&loaded));
        loaded.log_problems(&last.problems);
        // Prompts are equal if every client request gets the same response from both.
        if !loaded.prompts().eq(last.prompts()) {
            self.generation.send_modify(|generation| *generation += 1);
        }
    }
}

/// Error of a folder that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the prompt folder {} cannot be read", dir.display())]
pub struct Error {
    /// Path of the folder, as configured.
    pub(crate) dir: PathBuf,
    /// Error of the operating system.
    #[source]
    pub source: io::Error,
}

/// Invalid request to the library. Each is the client's mistake, and safe to show to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    /// No prompt of this name is in the library.
    #[error("Unknown prompt: {name}")]
    UnknownPrompt {
        /// Requested name.
        name: String,
    },
    /// A required argument is missing or empty.
    #[error("missing required argument `{argument}`")]
    MissingArgument {
        /// First missing argument, in the order of declaration.
        argument: String,
    },
    /// A completion was requested for an undeclared argument.
    #[error("prompt `{prompt}` has no argument `{argument}`")]
    UnknownArgument {
        /// Name of the prompt.
        prompt: String,
        /// Name of the argument.
        argument: String,
    },
    /// The filled prompt would exceed the size of a message.
    #[error("filled with these arguments the prompt is larger than {} MiB", limit_bytes >> 20)]
    TooLarge {
        /// Maximum size of a response.
        limit_bytes: usize,
    },
}

/// Mistake in a prompt file, which is therefore not served as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{file}:{line}: {what}")]
pub(crate) struct PromptProblem {
    /// File name within the folder.
    pub(crate) file: String,
    /// Line, counted from 1.
    pub(crate) line: usize,
    /// Description of the mistake.
    pub(crate) what: String,
    /// Whether the file's last valid version is still served.
    pub(crate) kept: bool,
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    fn names(library: &Library) -> Vec<String> {
        library.loaded().prompts().map(|prompt| prompt.name.clone()).collect()
    }

    fn problems(library: &Library) -> Vec<String> {
        library.mistakes()
    }

    /// Reads the folder once, as `watch` does; returns whether clients were notified of a change.
    fn read_again(library: &Library) -> bool {
        let mut changes = library.changes();
        changes.mark_unchanged();
        library.publish(LoadedPrompts::read(&library.dir, Some(&library.loaded())).unwrap());
        changes.has_changed().unwrap()
    }

    #[test]
    fn a_file_with_a_mistake_is_left_out_and_the_rest_is_served() {
        let dir = folder(&[
            ("c.md", "---\n---\nc"),
            ("a.md", "---\nname: z\n---\na"),
            ("bad.md", "---\ntitel: x\n---\n"),
            ("braces.md", "---\n---\n\n{{x}}"),
            ("dup.md", "---\nname: c\n---\n"),
            ("zdup.md", "---\nname: c\n---\nx"),
        ]);
        let library = Library::open(dir.path()).unwrap();
        assert_eq!(names(&library), ["c", "z"]);
        assert_eq!(
            problems(&library),
            [
                "bad.md:2: unknown field `titel`, expected one of name, title, description, version, arguments, messages",
                "braces.md:4: `{{x}}`: there is no argument `x` in the front matter; write `\\{{` for two literal braces",
                "dup.md:1: there is no text, and so no message",
                "zdup.md:1: the name `c` is taken by c.md",
            ]
        );
        let unknown = library.get("bad", &BTreeMap::new()).unwrap_err();
        assert_eq!(unknown.to_string(), "Unknown prompt: bad");
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let dir = folder(&[("file", "")]);
        for name in ["none", "file"] {
            let error = Library::open(&dir.path().join(name)).unwrap_err();
            assert!(error.to_string().ends_with(&format!("{name} cannot be read")), "{error}");
        }
    }

    #[test]
    fn a_prompt_that_leads_out_of_the_folder_is_refused() {
        let outside = folder(&[("secret.txt", "secret"), ("secret.md", "---\n---\nsecret")]);
        let secret = outside.path().join("secret.txt");
        let dir = folder(&[
            ("a.md", "---\n---\na\n<!-- embed: ../secret.txt -->"),
            ("b.md", &format!("---\nmessages: [{{embed: {}}}]\n---\n", secret.display())),
            ("c.md", "---\n---\n![c](link.png)"),
        ]);
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(&secret, dir.path().join("link.png")).unwrap();
            std::os::unix::fs::symlink(outside.path().join("secret.md"), dir.path().join("d.md"))
                .unwrap();
        }
        let library = Library::open(dir.path()).unwrap();
        assert_eq!(names(&library), Vec::<String>::new());
        #[cfg(unix)]
        assert_eq!(
            problems(&library),
            [
                "a.md:4: `../secret.txt` is not a path within the folder".to_owned(),
                format!("b.md:2: `{}` is not a path within the folder", secret.display()),
                "c.md:3: `link.png` leads out of the folder".to_owned(),
                "d.md:1: `d.md` leads out of the folder".to_owned(),
            ]
        );
    }

    #[test]
    fn clients_hear_of_a_change_only_if_an_answer_has_changed() {
        let dir = folder(&[("a.md", "---\narguments: [{name: x, values: [1]}]\n---\na")]);
        let library = Library::open(dir.path()).unwrap();
        let write = |text: &str| {
            fs::write(dir.path().join("a.md"), text).unwrap();
            read_again(&library)
        };
        assert!(!write("---\n# a comment\narguments: [{name: x, values: [1]}]\n---\n\na\n"));
        assert!(write("---\narguments: [{name: x, values: [1]}]\n---\nb"));
        assert!(write("---\narguments: [{name: x, values: [2]}]\n---\nb"));
        assert!(!write("---\nbroken"));
        assert_eq!(names(&library), ["a"]);
        assert!(library.loaded().problems[0].kept);
        fs::remove_file(dir.path().join("a.md")).unwrap();
        assert!(read_again(&library));
        assert_eq!((names(&library), problems(&library)), (vec![], Vec::<String>::new()));
    }

    #[test]
    fn a_kept_version_gives_its_name_up_to_a_good_file() {
        let dir = folder(&[("b.md", "---\nname: x\n---\nold")]);
        let library = Library::open(dir.path()).unwrap();
        fs::write(dir.path().join("b.md"), "broken").unwrap();
        fs::write(dir.path().join("c.md"), "---\nname: x\n---\nnew").unwrap();
        assert!(read_again(&library));
        let text = library.get("x", &BTreeMap::new()).unwrap();
        assert!(String::from_utf8_lossy(&text).contains("new"));
        assert!(!library.loaded().problems[0].kept);
    }

    #[test]
    fn the_prompts_that_come_with_weir_are_without_mistakes() {
        for (folder, at_least) in [("prompts/engineering", 5), ("prompts/operations", 5)] {
            let library =
                Library::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder))
                    .unwrap();
            assert_eq!(problems(&library), Vec::<String>::new());
            assert!(names(&library).len() >= at_least);
            for prompt in library.loaded().prompts() {
                assert!(prompt.description.is_some(), "{} has no description", prompt.name);
                let arguments = prompt
                    .arguments
                    .iter()
                    .map(|argument| (argument.name.clone(), format!("<<{}>>", argument.name)));
                let arguments: BTreeMap<String, String> = arguments.collect();
                let answer = String::from_utf8(prompt.get(&arguments).unwrap().to_vec()).unwrap();
                for text in arguments.values() {
                    assert!(answer.contains(text), "{} does not use {text}", prompt.name);
                }
            }
        }
    }
}
