//! The built-in prompt library: prompts from a folder of Markdown files.
//!
//! Promises that a prompt that is listed can be filled: whatever is wrong with a file is found when it is
//! read, reported with file and line, and costs the other files nothing. A file that turns bad while
//! the library is open keeps its last good version, since a save in mid-edit must not make a prompt
//! vanish. What an argument says is never expanded again, and no byte comes from outside the folder.
//! The format is described in `docs/prompt-library.md`.
//!
//! Invariant: [`Library::changes`] moves exactly when some client could get another answer.
//! Knows nothing of: the gateway, protocol revisions, sessions, the library's name among the upstreams.

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
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use loaded::Shelf;

/// A folder of prompts: a cheap handle, whose clones all see the same.
#[derive(Clone, Debug)]
pub struct Library {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    /// What the last reading made. A request takes the `Arc` and is not disturbed by the next one.
    shelf: RwLock<Arc<Shelf>>,
    /// Moved after the shelf has been replaced: who has seen a change sees at least its prompts.
    generation: tokio::sync::watch::Sender<u64>,
}

impl Library {
    /// Reads the folder. Mistakes in single files are logged and kept in [`Library::problems`]; a folder
    /// that is not there is an error. Blocks on the disk.
    pub fn open(dir: &Path) -> Result<Library, Error> {
        let unreadable = |source| Error { dir: dir.to_owned(), source };
        // Made absolute now, so that the folder stays the same whatever becomes of the working directory.
        let dir = std::path::absolute(dir).map_err(unreadable)?;
        let shelf = Shelf::read(&dir, None).map_err(unreadable)?;
        shelf.log_problems(&[]);
        let (generation, _) = tokio::sync::watch::channel(0);
        Ok(Library {
            inner: Arc::new(Inner { dir, shelf: RwLock::new(Arc::new(shelf)), generation }),
        })
    }

    /// The prompts as they stand in `prompts/list`, sorted by name.
    pub fn definitions(&self) -> Vec<Bytes> {
        self.shelf().prompts().map(|prompt| prompt.definition.clone()).collect()
    }

    /// The `GetPromptResult` (without `resultType`) of a prompt filled with these arguments.
    pub fn get(&self, name: &str, arguments: &BTreeMap<String, String>) -> Result<Bytes, Refusal> {
        self.shelf().find(name)?.get(arguments)
    }

    /// The `CompleteResult` (without `resultType`) for an argument of a prompt: those of its values that
    /// begin with the prefix, then those that contain it, in any case of letters.
    pub fn complete(&self, name: &str, argument: &str, prefix: &str) -> Result<Bytes, Refusal> {
        self.shelf().find(name)?.complete(argument, prefix)
    }

    /// What is wrong with the files, by file and line.
    pub fn problems(&self) -> Vec<Problem> {
        self.shelf().problems().to_vec()
    }

    /// Changes whenever a definition, a text or the set of prompts has changed.
    pub fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.inner.generation.subscribe()
    }

    /// Reads the folder again whenever a file changes. Ends only when `stop` fires.
    ///
    /// The kernel's word is acted upon after 100 ms, which is a burst or an editor's save; where the
    /// kernel is silent (network folders, sub-folders) a look every 2 s finds the change. A folder that
    /// vanishes keeps its last prompts and is said to have vanished once.
    pub async fn watch(self, stop: CancellationToken) {
        watch::Watch::new(self).run(stop).await;
    }

    fn shelf(&self) -> Arc<Shelf> {
        Arc::clone(&self.inner.shelf.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts a new reading in the place of the last one.
    fn publish(&self, shelf: Shelf) {
        let last = {
            let mut place = self.inner.shelf.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *place, Arc::new(shelf))
        };
        let shelf = self.shelf();
        shelf.log_problems(last.problems());
        if !shelf.answers_like(&last) {
            self.inner.generation.send_modify(|generation| *generation += 1);
        }
    }
}

/// The folder cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the prompt folder {} cannot be read", dir.display())]
pub struct Error {
    /// The folder, as it was named.
    pub dir: PathBuf,
    /// What the operating system says.
    #[source]
    pub source: io::Error,
}

/// Why a request has no answer. Each is the client's to mend, and safe to tell it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No prompt of this name is in the library.
    #[error("Unknown prompt: {name}")]
    UnknownPrompt {
        /// The name that was asked for.
        name: String,
    },
    /// A required argument was not sent, or sent without a text.
    #[error("missing required argument `{argument}`")]
    MissingArgument {
        /// The first one that is missing, in the order of their declaration.
        argument: String,
    },
    /// A completion was asked for an argument that the prompt does not declare.
    #[error("prompt `{prompt}` has no argument `{argument}`")]
    UnknownArgument {
        /// The prompt's name.
        prompt: String,
        /// The argument's name.
        argument: String,
    },
    /// The arguments are so long that the filled prompt would not fit into a message.
    #[error("filled with these arguments the prompt is larger than {} MiB", limit_bytes >> 20)]
    TooLarge {
        /// What an answer may be at most.
        limit_bytes: usize,
    },
}

/// A mistake in a file, which therefore is not served as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// The file's name within the folder.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
    /// Whether the file's last good version is still served.
    pub kept: bool,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
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
        library.shelf().prompts().map(|prompt| prompt.name.clone()).collect()
    }

    fn problems(library: &Library) -> Vec<String> {
        library.problems().iter().map(Problem::to_string).collect()
    }

    /// One reading of the folder, as `watch` does it; returns whether clients were told of a change.
    fn read_again(library: &Library) -> bool {
        let mut changes = library.changes();
        changes.mark_unchanged();
        library.publish(Shelf::read(&library.inner.dir, Some(&library.shelf())).unwrap());
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
        assert!(library.problems()[0].kept);
        fs::remove_file(dir.path().join("a.md")).unwrap();
        assert!(read_again(&library));
        assert_eq!((names(&library), library.problems()), (vec![], vec![]));
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
        assert!(!library.problems()[0].kept);
    }

    #[test]
    fn the_prompts_that_come_with_weir_are_without_mistakes() {
        for (folder, at_least) in [("prompts/engineering", 5), ("prompts/operations", 5)] {
            let library =
                Library::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap();
            assert_eq!(problems(&library), Vec::<String>::new());
            assert!(names(&library).len() >= at_least);
            for prompt in library.shelf().prompts() {
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
