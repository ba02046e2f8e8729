//! Result of one reading of the folder: prompts, problems and file stamps.
//!
//! Invariant: a name belongs to one prompt. Of two files with the same name the first one, by file
//! name, wins, whichever changed last: so a restart finds the same prompts as a running library.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::folder::{Folder, MAX_PROMPT_FILES, Stamps};
use super::prompt::Prompt;
use super::template::Mistake;
use super::{PromptError, PromptProblem, attachment, file};

/// Prompts of one reading of the folder.
#[derive(Debug)]
pub(super) struct LoadedPrompts {
    prompts: BTreeMap<String, Arc<Prompt>>,
    pub(super) problems: Vec<PromptProblem>,
    /// State of the files at the time of the reading.
    pub(super) stamps: Stamps,
}

impl LoadedPrompts {
    /// Reads the folder. An invalid file keeps its version of the `last` reading. Blocks.
    pub(super) fn read(dir: &Path, last: Option<&LoadedPrompts>) -> io::Result<LoadedPrompts> {
        let mut folder = Folder::open(dir)?;
        let library = folder.name();
        let mut prompts: BTreeMap<String, Arc<Prompt>> = BTreeMap::new();
        let mut invalid: Vec<(String, Vec<Mistake>)> = Vec::new();
        for (index, file) in folder.prompt_files()?.into_iter().enumerate() {
            let read = if index < MAX_PROMPT_FILES {
                read_file(&mut folder, &library, &file)
            } else {
                let what = format!(
                    "the folder holds more than {MAX_PROMPT_FILES} prompts; \
                     this one and those behind it are left out"
                );
                Err(vec![Mistake::new(1, what)])
            };
            match read {
                Err(mistakes) => invalid.push((file, mistakes)),
                Ok(prompt) => match prompts.get(&prompt.name) {
                    Some(first) => {
                        let what = format!("the name `{}` is taken by {}", prompt.name, first.file);
                        invalid.push((file, vec![Mistake::new(1, what)]));
                    }
                    None => drop(prompts.insert(prompt.name.clone(), Arc::new(prompt))),
                },
            }
        }
        // Old versions come last, since valid files have the first claim to a name.
        let mut problems = Vec::new();
        for (file, mistakes) in invalid {
            let kept = last
                .and_then(|last| last.prompts.values().find(|prompt| prompt.file == file))
                .filter(|prompt| !prompts.contains_key(&prompt.name));
            let is_kept = kept.is_some();
            problems.extend(mistakes.into_iter().map(|Mistake { line, what }| PromptProblem {
                file: file.clone(),
                line,
                what,
                kept: is_kept,
            }));
            if let Some(prompt) = kept {
                prompts.insert(prompt.name.clone(), Arc::clone(prompt));
            }
        }
        Ok(LoadedPrompts { prompts, problems, stamps: folder.stamps })
    }

    /// Prompts, sorted by name.
    pub(super) fn prompts(&self) -> impl Iterator<Item = &Prompt> {
        self.prompts.values().map(|prompt| &**prompt)
    }

    pub(super) fn find(&self, name: &str) -> Result<&Prompt, PromptError> {
        let unknown = || PromptError::UnknownPrompt { name: name.to_owned() };
        self.prompts.get(name).map(|prompt| &**prompt).ok_or_else(unknown)
    }

    /// Logs the problems that the last reading did not have.
    pub(super) fn log_problems(&self, last: &[PromptProblem]) {
        let last: HashSet<&PromptProblem> = last.iter().collect();
        for problem in self.problems.iter().filter(|problem| !last.contains(problem)) {
            let outcome = if problem.kept { "last valid version kept" } else { "prompt left out" };
            tracing::warn!(%problem, outcome, "prompt file invalid");
        }
    }
}

fn read_file(folder: &mut Folder, library: &str, file: &str) -> Result<Prompt, Vec<Mistake>> {
    let bytes = folder.read(file).map_err(|what| vec![Mistake::new(1, what)])?;
    file::parse(file, &bytes, &mut |kind, path| {
        let bytes = folder.read(path)?;
        attachment::render(kind, library, path, bytes)
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
        let loaded = LoadedPrompts::read(dir.path(), None).unwrap();
        assert_eq!(loaded.prompts().count(), 1000);
        let [problem] = &*loaded.problems else { panic!("{:?}", loaded.problems) };
        assert_eq!(problem.file, "p1000.md");
        assert!(problem.what.contains("more than 1000 prompts"), "{}", problem.what);
    }
}
