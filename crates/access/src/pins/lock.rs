//! Lock file: the approved definitions, in a form for review in version control.
//!
//! TOML, sorted, one line per item, so that a change of one item is a change of one line. A kind
//! without a table has never been pinned; a kind with an empty table has, and had no items.
//!
//! Invariants: a written file parses to the same content; invisible characters are written as
//! escapes; a file is replaced completely or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::time::SystemTime;

use super::digest::Digest;
use weir_base::files::regular_file;
use weir_mcp::kind::Kind;

/// Approvals of all upstreams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinFile {
    /// Approvals by upstream name.
    pub upstreams: BTreeMap<String, Pinned>,
}

/// Approvals of one upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// Digest of the instructions; `Some(None)` if their absence was approved.
    pub instructions: Option<Option<Digest>>,
    /// Digests of the pinned kinds, by the item's own name or URI template.
    pub kinds: [Option<BTreeMap<String, Digest>>; 3],
}

/// Pinned kinds, with their tables in the file. Resources are not pinned: their definitions contain
/// size and date, which change with the contents.
pub const PINNED: [(Kind, &str); 3] =
    [(Kind::Prompt, "prompts"), (Kind::Tool, "tools"), (Kind::Template, "templates")];

/// Returns the index of a kind among the pinned ones.
pub(super) fn kind_index(kind: Kind) -> Option<usize> {
    PINNED.iter().position(|(pinned, _)| *pinned == kind)
}

/// Reason why a lock file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadLock {
    /// The file cannot be read or written.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The file is not TOML, or not a lock file; the text names the line.
    #[error("{0}")]
    Content(String),
}

impl PinFile {
    /// Reads a file; `None` if it does not exist.
    pub fn load(path: &Path) -> Result<Option<Self>, BadLock> {
        match regular_file::read(path, MAX_BYTES) {
            Ok(bytes) => {
                let text = String::from_utf8(bytes);
                let text = text.map_err(|_| BadLock::Content("it is not UTF-8".to_owned()))?;
                Self::parse(&text).map(Some)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Parses the output of [`PinFile::to_text`].
    pub(crate) fn parse(text: &str) -> Result<Self, BadLock> {
        let bad = |what: String| BadLock::Content(what);
        let file: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(0, |span| text[..span.start].matches('\n').count());
            bad(format!("line {}: {}", line + 1, error.message()))
        })?;
        match file.get("version").and_then(toml::Value::as_integer) {
            Some(FORMAT) => {}
            _ => return Err(bad(format!("unsupported `version`, expected {FORMAT}"))),
        }
        let mut lock = Self::default();
        for (key, value) in &file {
            match (&**key, value) {
                ("version", _) => {}
                ("upstreams", toml::Value::Table(upstreams)) => {
                    for (name, pinned) in upstreams {
                        let pinned = pinned.as_table().and_then(parse_pinned);
                        let no_table = || bad(format!("`upstreams.{name}` is malformed"));
                        lock.upstreams.insert(name.clone(), pinned.ok_or_else(no_table)?);
                    }
                }
                (other, _) => return Err(bad(format!("no such key: {other:?}"))),
            }
        }
        Ok(lock)
    }

    /// Returns the text of the file.
    pub(crate) fn to_text(&self) -> String {
        self.to_text_with(HEADER)
    }

    pub(super) fn to_text_with(&self, header: &str) -> String {
        let mut out = format!("{header}version = {FORMAT}\n");
        let digest =
            |digest: Option<Digest>| digest.map_or_else(|| NONE.into(), |it| it.to_string());
        for (name, pinned) in &self.upstreams {
            let _ = writeln!(out, "\n[upstreams.{name}]");
            if let Some(instructions) = pinned.instructions {
                let _ = writeln!(out, "instructions = \"{}\"", digest(instructions));
            }
            for ((_, kind), items) in PINNED.iter().zip(&pinned.kinds) {
                let Some(items) = items else { continue };
                let _ = writeln!(out, "\n[upstreams.{name}.{kind}]");
                for (key, approved) in items {
                    let _ = writeln!(out, "{} = \"{approved}\"", quote(key));
                }
            }
        }
        out
    }

    /// Writes the file completely or not at all. Owner and permissions are preserved, and a
    /// symbolic link remains a link.
    pub fn save(&self, path: &Path) -> Result<(), BadLock> {
        let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let folder = real.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
        let text = self.to_text();
        if text.len() as u64 > MAX_BYTES {
            let what = format!("it would be larger than {} MiB", MAX_BYTES >> 20);
            return Err(BadLock::Content(what));
        }
        file.write_all(text.as_bytes())?;
        #[cfg(unix)]
        copy_owner_and_mode(file.as_file(), std::fs::metadata(&real).ok().as_ref())?;
        file.as_file().sync_all()?;
        file.persist(&real).map_err(|error| error.error)?;
        Ok(())
    }
}

/// Returns the upstreams whose approvals differ, with a description of each difference.
pub(super) fn changes<'p>(before: &'p PinFile, now: &'p PinFile) -> Vec<(&'p str, Vec<String>)> {
    let none = Pinned::default();
    let names: BTreeSet<&str> =
        before.upstreams.keys().chain(now.upstreams.keys()).map(String::as_str).collect();
    let of = |name: &str| {
        let was = before.upstreams.get(name).unwrap_or(&none);
        let is = now.upstreams.get(name).unwrap_or(&none);
        let mut changes = Vec::new();
        if was.instructions != is.instructions {
            changes.push("instructions".to_owned());
        }
        for (at, (kind, _)) in PINNED.iter().enumerate() {
            let (was, is) = (was.kinds[at].iter().flatten(), is.kinds[at].iter().flatten());
            let (was, is) = (BTreeMap::from_iter(was), BTreeMap::from_iter(is));
            for (key, digest) in &is {
                match was.get(key) {
                    None => changes.push(format!("new {kind} {key}")),
                    Some(known) if known != digest => changes.push(format!("changed {kind} {key}")),
                    Some(_) => {}
                }
            }
            let gone = was.keys().filter(|key| !is.contains_key(*key));
            changes.extend(gone.map(|key| format!("removed {kind} {key}")));
        }
        changes
    };
    let all = names.into_iter().map(|name| (name, of(name)));
    all.filter(|(_, changes)| !changes.is_empty()).collect()
}

/// Gives a file the owner and the permissions of the one that it replaces.
#[cfg(unix)]
fn copy_owner_and_mode(
    file: &std::fs::File,
    old: Option<&std::fs::Metadata>,
) -> std::io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
    if let Some(old) = old {
        let own = file.metadata()?;
        if (own.uid(), own.gid()) != (old.uid(), old.gid()) {
            fchown(file, Some(old.uid()), Some(old.gid()))?;
        }
    }
    // A new lock file is readable for all; a temporary file is not.
    let mode = old.map_or(0o644, |old| old.permissions().mode());
    file.set_permissions(std::fs::Permissions::from_mode(mode))
}

fn parse_pinned(table: &toml::Table) -> Option<Pinned> {
    let digest = |value: &toml::Value| value.as_str()?.parse::<Digest>().ok();
    let mut pinned = Pinned::default();
    for (key, value) in table {
        if key == "instructions" {
            let is_none = value.as_str() == Some(NONE);
            pinned.instructions = Some(if is_none { None } else { Some(digest(value)?) });
            continue;
        }
        let at = PINNED.iter().position(|(_, name)| name == key)?;
        let items = value.as_table()?.iter();
        let items = items.map(|(key, value)| Some((key.clone(), digest(value)?)));
        pinned.kinds[at] = Some(items.collect::<Option<_>>()?);
    }
    Some(pinned)
}

/// Quotes a key. Characters that are neither ASCII nor letters or digits are escaped, so that a
/// reviewer sees them.
fn quote(key: &str) -> String {
    let mut out = String::from("\"");
    for letter in key.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            ' '..='~' => out.push(letter),
            _ if letter.is_alphanumeric() => out.push(letter),
            _ => {
                let _ = write!(out, "\\U{:08X}", u32::from(letter));
            }
        }
    }
    out + "\""
}

/// Largest lock file: several hundred thousand definitions.
const MAX_BYTES: u64 = 64 << 20;
const FORMAT: i64 = 1;
const NONE: &str = "none";
const HEADER: &str = "\
# The definitions that were approved, each by the hash of all that its server says of it.
# Written by Weir. `weir pins diff` shows what is different now, `weir pins approve` accepts it.
";

/// Identity of a file: time of the last change, size and inode. A replaced file differs, even if it
/// is replaced immediately by a similar one.
pub(super) type Stamp = (SystemTime, u64, u64);

pub(super) fn stamp(path: &Path) -> Option<Stamp> {
    let about = std::fs::metadata(path).ok()?;
    #[cfg(unix)]
    let number = std::os::unix::fs::MetadataExt::ino(&about);
    #[cfg(not(unix))]
    let number = 0;
    Some((about.modified().ok()?, about.len(), number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn digest(text: &str) -> Digest {
        Digest::of_text(text)
    }

    #[test]
    fn a_lock_is_a_line_for_each_item() {
        let items =
            |names: &[&str]| Some(names.iter().map(|it| ((*it).to_owned(), digest("x"))).collect());
        let hub = Pinned {
            instructions: Some(Some(digest("x"))),
            kinds: [items(&["b", "a\u{202e}\"é"]), items(&[]), None],
        };
        let wiki = Pinned { instructions: Some(None), ..Pinned::default() };
        let upstreams = [("wiki".to_owned(), wiki), ("hub".to_owned(), hub)];
        let lock = PinFile { upstreams: upstreams.into() };
        let text = lock.to_text().replace(&digest("x").to_string(), "v1:…");
        insta::assert_snapshot!(text, @r#"
        # The definitions that were approved, each by the hash of all that its server says of it.
        # Written by Weir. `weir pins diff` shows what is different now, `weir pins approve` accepts it.
        version = 1

        [upstreams.hub]
        instructions = "v1:…"

        [upstreams.hub.prompts]
        "a\U0000202E\"é" = "v1:…"
        "b" = "v1:…"

        [upstreams.hub.tools]

        [upstreams.wiki]
        instructions = "none"
        "#);
        assert_eq!(PinFile::parse(&lock.to_text()).ok(), Some(lock));
    }

    #[test]
    fn what_is_no_lock_is_told_with_its_place() {
        let error_of = |text: &str| PinFile::parse(text).map(|_| ()).unwrap_err().to_string();
        assert_eq!(error_of(""), "unsupported `version`, expected 1");
        assert_eq!(error_of("version = 2"), "unsupported `version`, expected 1");
        assert_eq!(error_of("version = 1\nx = 7"), "no such key: \"x\"");
        let odd = error_of("version = 1\n[upstreams.hub.tools]\nx = \"v2:00\"");
        assert_eq!(odd, "`upstreams.hub` is malformed");
        let broken = error_of("version = 1\n\n[upstreams\n");
        assert!(broken.starts_with("line 3: "), "{broken}");
    }

    #[test]
    fn a_file_is_written_and_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("weir.lock");
        assert!(matches!(PinFile::load(&path), Ok(None)));
        let lock = PinFile { upstreams: [("hub".to_owned(), Pinned::default())].into() };
        lock.save(&path).expect("it can be written");
        assert_eq!(PinFile::load(&path).expect("it can be read"), Some(lock.clone()));
        assert!(matches!(lock.save(&folder.path().join("gone/weir.lock")), Err(BadLock::Io(_))));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_still_leads_to_it_and_its_owner_and_mode_stay() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
        let folder = tempfile::tempdir().expect("a folder");
        let (path, real) = (folder.path().join("weir.lock"), folder.path().join("a/weir.lock"));
        std::fs::create_dir(folder.path().join("a")).expect("made");
        std::fs::write(&real, "").expect("written");
        std::fs::set_permissions(&real, PermissionsExt::from_mode(0o640)).expect("set");
        symlink("a/weir.lock", &path).expect("linked");
        // Only root may change the owner.
        let _ = chown(&real, Some(7), Some(7));
        let about = || {
            let about = std::fs::metadata(&real).expect("it is there");
            (about.uid(), about.gid(), about.mode() & 0o777)
        };
        let before = about();
        let lock = PinFile { upstreams: [("hub".to_owned(), Pinned::default())].into() };
        lock.save(&path).expect("it can be written");
        assert!(path.is_symlink());
        assert_eq!(PinFile::load(&real).expect("it can be read"), Some(lock));
        assert_eq!(about(), before);
    }

    proptest! {
        #[test]
        fn any_lock_reads_back(keys in prop::collection::btree_set(".{0,12}", 0..6)) {
            let items = keys.iter().map(|key| (key.clone(), digest(key))).collect();
            let hub = Pinned { instructions: None, kinds: [None, Some(items), None] };
            let lock = PinFile { upstreams: [("hub".to_owned(), hub)].into() };
            prop_assert_eq!(PinFile::parse(&lock.to_text()).ok(), Some(lock));
        }
    }

    #[test]
    fn a_lock_file_is_a_regular_file_of_bounded_size() {
        let folder = tempfile::tempdir().expect("a folder");
        let error_of = |path: &Path| PinFile::load(path).expect_err("refused").to_string();
        assert_eq!(error_of(folder.path()), "it is a folder, not a regular file");
        let path = folder.path().join("weir.lock");
        let file = std::fs::File::create(&path).expect("made");
        file.set_len(MAX_BYTES + 1).expect("it has no blocks");
        assert_eq!(error_of(&path), "it is larger than 67108864 bytes");
    }
}
