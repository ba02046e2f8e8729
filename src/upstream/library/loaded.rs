//! Everything that one reading of the folder gave: the prompts, what was wrong, what to compare.
//!
//! Invariant: a name leads to one prompt. Of two files that claim a name the first has it, in the order
//! of the files' names, whichever changed last: so a restart finds what a running library has.
//! Knows nothing of: time, who asks.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::folder::{Folder, MAX_PROMPT_FILES, Stamps};
use super::prompt::Prompt;
use super::template::Flaw;
use super::{Problem, Refusal, attachment, file};

/// One reading of the folder.
#[derive(Debug)]
pub(super) struct Shelf {
    prompts: BTreeMap<String, Shelved>,
    problems: Vec<Problem>,
    stamps: Stamps,
}

#[derive(Debug)]
struct Shelved {
    file: String,
    prompt: Arc<Prompt>,
}

impl Shelf {
    /// Reads the folder; a file that is bad now keeps what it was in the `last` reading. Blocks.
    pub(super) fn read(dir: &Path, last: Option<&Shelf>) -> io::Result<Shelf> {
        let mut folder = Folder::open(dir)?;
        let library = folder.name();
        let mut prompts: BTreeMap<String, Shelved> = BTreeMap::new();
        let mut bad: Vec<(String, Vec<Flaw>)> = Vec::new();
        for (index, file) in folder.prompt_files()?.into_iter().enumerate() {
            let read = if index < MAX_PROMPT_FILES {
                read_file(&mut folder, &library, &file)
            } else {
                Err(vec![Flaw {
                    line: 1,
                    what: format!(
                        "the folder holds more than {MAX_PROMPT_FILES} prompts; this one and those behind it are left out"
                    ),
                }])
            };
            match read {
                Err(flaws) => bad.push((file, flaws)),
                Ok(prompt) => match prompts.get(&prompt.name) {
                    Some(first) => {
                        let what = format!("the name `{}` is taken by {}", prompt.name, first.file);
                        bad.push((file, vec![Flaw { line: 1, what }]));
                    }
                    None => {
                        drop(prompts.insert(
                            prompt.name.clone(),
                            Shelved { file, prompt: Arc::new(prompt) },
                        ))
                    }
                },
            }
        }
        // Only now, since what is good has the first claim to a name.
        let mut problems = Vec::new();
        for (file, flaws) in bad {
            let kept = last
                .and_then(|last| last.of_file(&file))
                .filter(|prompt| !prompts.contains_key(&prompt.name));
            let is_kept = kept.is_some();
            problems.extend(flaws.into_iter().map(|Flaw { line, what }| Problem {
                file: file.clone(),
                line,
                what,
                kept: is_kept,
            }));
            if let Some(prompt) = kept {
                prompts.insert(prompt.name.clone(), Shelved { file, prompt: Arc::clone(prompt) });
            }
        }
        Ok(Shelf { prompts, problems, stamps: folder.into_stamps() })
    }

    /// The prompts, sorted by name.
    pub(super) fn prompts(&self) -> impl Iterator<Item = &Prompt> {
        self.prompts.values().map(|shelved| &*shelved.prompt)
    }

    pub(super) fn find(&self, name: &str) -> Result<&Prompt, Refusal> {
        match self.prompts.get(name) {
            Some(shelved) => Ok(&shelved.prompt),
            None => Err(Refusal::UnknownPrompt { name: name.to_owned() }),
        }
    }

    pub(super) fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// What the files were like when they were read.
    pub(super) fn stamps(&self) -> &Stamps {
        &self.stamps
    }

    /// Whether no client can tell this reading from another.
    pub(super) fn answers_like(&self, other: &Shelf) -> bool {
        self.prompts().eq(other.prompts())
    }

    /// Logs the problems that were not there in the last reading.
    pub(super) fn log_problems(&self, last: &[Problem]) {
        let last: HashSet<&Problem> = last.iter().collect();
        for problem in self.problems.iter().filter(|problem| !last.contains(problem)) {
            let outcome = if problem.kept {
                "keeping the last good version"
            } else {
                "leaving the prompt out"
            };
            tracing::warn!(%problem, outcome, "mistake in a prompt file");
        }
    }

    fn of_file(&self, file: &str) -> Option<&Arc<Prompt>> {
        self.prompts.values().find(|shelved| shelved.file == file).map(|shelved| &shelved.prompt)
    }
}

fn read_file(folder: &mut Folder, library: &str, file: &str) -> Result<Prompt, Vec<Flaw>> {
    let bytes = folder.read_prompt(file).map_err(|what| vec![Flaw { line: 1, what }])?;
    let stem = file.strip_suffix(".md").unwrap_or(file);
    file::parse(stem, &bytes, &mut |form, path| {
        let bytes = folder.read_attachment(path)?;
        attachment::render(form, library, path, bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_gives_at_most_a_thousand_prompts_and_says_which_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..=MAX_PROMPT_FILES {
            let text = "---\n---\ntext";
            std::fs::write(dir.path().join(format!("p{number:04}.md")), text).unwrap();
        }
        let shelf = Shelf::read(dir.path(), None).unwrap();
        assert_eq!(shelf.prompts().count(), 1000);
        let [problem] = shelf.problems() else { panic!("{:?}", shelf.problems()) };
        assert_eq!(problem.file, "p1000.md");
        assert!(problem.what.contains("more than 1000 prompts"), "{}", problem.what);
    }
}
