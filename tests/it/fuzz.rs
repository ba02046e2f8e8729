//! The corpora of `fuzz/`: each committed input passes its target's check in time, and so do a few
//! inputs that are derived from them. `./dev fuzz` lets libFuzzer derive inputs, guided by
//! coverage.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::checks::TARGETS;
use crate::night::bound;
use crate::sim::Dice;

/// Longest time for one input: nightly, and by day in an unoptimized build on a busy machine.
fn most() -> Duration {
    bound(60_000, 5_000)
}

/// Total size of all corpora, at most.
const BYTES: u64 = 300 * 1024;

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

/// Inputs of a target, sorted by name.
fn inputs(target: &str) -> Vec<PathBuf> {
    let folder = corpora().join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

fn replay(targets: std::ops::Range<usize>) {
    for (target, check) in &TARGETS[targets] {
        let inputs = inputs(target);
        assert!(inputs.len() >= 5, "{target} has {} inputs", inputs.len());
        for path in inputs {
            let bytes = std::fs::read(&path).expect("an input");
            let begin = Instant::now();
            let checked = std::panic::catch_unwind(|| check(&bytes));
            assert!(checked.is_ok(), "{}", path.display());
            assert!(begin.elapsed() < most(), "{}: {:?}", path.display(), begin.elapsed());
        }
    }
}

#[test]
fn what_reads_and_writes_text_keeps_its_word_for_every_committed_input() {
    replay(0..11);
}

#[test]
fn the_promises_hold_for_every_committed_input() {
    replay(11..TARGETS.len());
}

/// Derived inputs for each target: of text, and of those that start a gateway for each input.
const MADE: u64 = 300;
const MADE_HOUSES: u64 = 15;

/// Derives an input from those of a corpus.
fn made(from: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = from[dice.below(from.len() as u64) as usize].clone();
    for _ in 0..=dice.below(4) {
        let at = dice.below(bytes.len() as u64 + 1) as usize;
        let end = (at + dice.below(9) as usize).min(bytes.len());
        match dice.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            1 if at < bytes.len() => bytes[at] = dice.next() as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..end)),
            4 => {
                let again = bytes[at..end].repeat(1 + dice.below(4) as usize);
                bytes.splice(at..at, again);
            }
            _ => {
                let other = &from[dice.below(from.len() as u64) as usize];
                let cut = dice.below(other.len() as u64 + 1) as usize;
                bytes.splice(at.., other[cut..].iter().copied());
            }
        }
    }
    bytes
}

/// Derives `count` inputs for each of these targets, the same ones each time.
fn make(targets: std::ops::Range<usize>, count: u64) {
    for (target, check) in &TARGETS[targets] {
        let read = |path: &PathBuf| std::fs::read(path).expect("an input");
        let from: Vec<_> = inputs(target).iter().map(read).collect();
        let mut dice = Dice::new(1);
        for _ in 0..count {
            let bytes = made(&from, &mut dice);
            let started = Instant::now();
            let checked = std::panic::catch_unwind(|| check(&bytes));
            let shown = || bytes.escape_ascii().to_string();
            assert!(checked.is_ok(), "{target}: b\"{}\"", shown());
            assert!(started.elapsed() < most(), "{target}: {:?}: {}", started.elapsed(), shown());
        }
    }
}

#[test]
fn made_from_the_committed_inputs_others_find_no_fault_with_text_either() {
    make(0..11, MADE);
}

#[test]
fn the_promises_hold_for_mutations_of_the_committed_inputs() {
    make(11..TARGETS.len(), MADE_HOUSES);
}

#[test]
fn the_corpora_are_small_and_each_is_a_targets() {
    let mut bytes = 0;
    for folder in std::fs::read_dir(corpora()).expect("corpora") {
        let name = folder.expect("an entry").file_name().into_string().expect("a name");
        assert!(TARGETS.iter().any(|(target, _)| *target == name), "no target is called {name}");
        for path in inputs(&name) {
            bytes += path.metadata().expect("a file").len();
        }
    }
    assert!(bytes <= BYTES, "{bytes} bytes");
}
