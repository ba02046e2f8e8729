//! What an upstream listed last, kept on disk: it is shown after a start until the upstream has been listed.
//!
//! A file for each kind, and one for what the upstream says of itself, named by the upstream and a hash of what it
//! runs on; so nothing is shown to whom another account, program or server listed it.
//!
//! Promises: a file is replaced whole or not at all, so several processes may share a folder; it can be read by its
//! owner only, and holds no secret of the configuration. What is not whole, of another version or too large is
//! nothing, and is replaced. Lists of no more than [`MAX_BYTES`] are kept, and of one upstream those of the last
//! [`MAX_PER_UPSTREAM`] settings.
//!
//! Knows nothing of: when something is to be kept, and what is approved: what is read goes the way of any list.

use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bytes::Bytes;

use crate::catalog::{Introduction, Snapshot};
use crate::cpu_bound;
use crate::json::{self, Object};
use crate::mcp::capabilities::Capabilities;
use crate::mcp::definition::item::Item;
use crate::mcp::kind::Kind;
use crate::regular_file;
use crate::upstream::{Settings, Source};

/// The longest file that is written or read.
pub(crate) const MAX_BYTES: usize = 32 << 20;
/// How many settings of one upstream are kept something of.
const MAX_PER_UPSTREAM: usize = 8;
/// Another form has another number.
const VERSION: &str = "1";
/// The longest line of a file; a definition is much shorter.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Where one upstream's last lists are kept.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    folder: PathBuf,
    /// The upstream's name, and a dash.
    name: String,
    /// What all of its files begin with.
    stem: String,
}

/// All that was kept of an upstream.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) introduction: Introduction,
    /// By [`Kind::index`].
    pub(crate) snapshots: [Snapshot; 4],
}

impl Kept {
    /// Where the lists of an upstream with these settings are kept, if they are.
    pub(crate) fn of(settings: &Settings) -> Option<Self> {
        let folder = settings.kept_in.clone()?;
        // A folder of prompts is on this disk already.
        if let Source::Library { .. } = settings.source {
            return None;
        }
        let name = format!("{}-", settings.name);
        let stem = format!("{name}{}", &settings.fingerprint()[..32]);
        Some(Self { folder, name, stem })
    }

    /// Reads what was kept, if all of it is there. Blocks.
    pub(crate) fn read(&self) -> Option<Found> {
        let (_, about) = self.lines(ABOUT)?;
        let [about] = &about[..] else { return None };
        let introduction = Introduction {
            capabilities: Capabilities::read(&about.get_object("capabilities")?),
            instructions: about.get_string("instructions").map(|text| text.as_ref().into()),
        };
        let snapshot = |kind: Kind| {
            let (head, lines) = self.lines(file_of(kind))?;
            let items = lines.iter().map(|line| item(kind, line)).collect::<Option<_>>()?;
            let is_private = head.get("private") == Some("true");
            let cut = head.get_string("cut").map(|cut| cut.as_ref().into());
            Some(Snapshot { items, fresh_until: None, is_private, cut })
        };
        let [Some(a), Some(b), Some(c), Some(d)] = Kind::ALL.map(snapshot) else { return None };
        Some(Found { introduction, snapshots: [a, b, c, d] })
    }

    /// Keeps a list. Blocks.
    pub(crate) fn write(&self, kind: Kind, snapshot: &Snapshot) -> io::Result<()> {
        // What nobody can use need not be kept.
        let items = snapshot.items.iter().filter(|item| item.flaw.is_none());
        let line = |item: &Item| {
            let mut line = Object::new();
            line.set("definition", json::on_one_line(item.definition.to_bytes()));
            if item.needs_task {
                line.set("needsTask", "true");
            }
            line.to_bytes()
        };
        let cut = snapshot.cut.as_deref();
        self.replace(file_of(kind), snapshot.is_private, cut, items.map(line))
    }

    /// Keeps what the upstream says of itself. Blocks.
    pub(crate) fn introduce(&self, introduction: &Introduction) -> io::Result<()> {
        let mut about = Object::new();
        about.set("capabilities", introduction.capabilities.to_object().to_bytes());
        if let Some(text) = &introduction.instructions {
            about.set("instructions", json::quote(text));
        }
        self.replace(ABOUT, false, None, [json::on_one_line(about.to_bytes())])?;
        self.tidy();
        Ok(())
    }

    /// A file's first line, and the others.
    fn lines(&self, of: &str) -> Option<(Object, Vec<Object>)> {
        let file = regular_file::open(&self.path(of)).ok()?;
        if file.metadata().ok()?.len() > MAX_BYTES as u64 {
            return None;
        }
        let mut reader = BufReader::new(file);
        let mut next = || {
            let mut line = Vec::new();
            let read = reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line).ok()?;
            (read > 0 && line.pop() == Some(b'\n')).then_some(Bytes::from(line))
        };
        let object = |line: Bytes| Object::parse_within(line, usize::MAX).ok();
        let head = object(next()?)?;
        let count: usize = head.get("lines")?.parse().ok()?;
        if head.get("version") != Some(VERSION) || head.get_string("of").as_deref() != Some(of) {
            return None;
        }
        let lines = (0..count.min(MAX_BYTES)).map(|_| object(next()?)).collect::<Option<_>>()?;
        next().is_none().then_some((head, lines))
    }

    fn replace(
        &self,
        of: &str,
        is_private: bool,
        cut: Option<&str>,
        lines: impl IntoIterator<Item = Bytes>,
    ) -> io::Result<()> {
        let (mut text, mut count) = (Vec::new(), 0_usize);
        for line in lines {
            text.extend_from_slice(&line);
            text.push(b'\n');
            count += 1;
            if text.len() > MAX_BYTES - 1_024 {
                // What was kept is not so any more.
                let _ = fs::remove_file(self.path(of));
                return Err(io::Error::other("it is too large to be kept"));
            }
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        // Readable for its owner only; renamed, so that nobody reads half of it.
        let file = tempfile::NamedTempFile::new_in(&self.folder)?;
        let mut writer = BufWriter::new(file);
        let cut = cut.map(json::quote);
        let cut = cut.map(|cut| format!(r#""cut":{},"#, String::from_utf8_lossy(&cut)));
        let cut = cut.unwrap_or_default();
        writeln!(
            writer,
            r#"{{"version":{VERSION},"of":"{of}","private":{is_private},{cut}"lines":{count}}}"#
        )?;
        writer.write_all(&text)?;
        let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.persist(self.path(of)).map_err(|error| error.error)?;
        Ok(())
    }

    /// Removes what was kept of this upstream under settings that it has not had for the longest time.
    fn tidy(&self) {
        let is_ours = |path: &Path| {
            let name = path.file_name()?.to_str()?;
            let stem = name.strip_prefix(&self.name)?.strip_suffix(&format!(".{ABOUT}"))?;
            // An upstream's name may be the beginning of another's.
            let is_hash = stem.len() == 32 && stem.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_hash.then(|| format!("{}{stem}", self.name))
        };
        let mut stems: Vec<(SystemTime, String)> = fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                // Only of its own: the folder has the lists of all upstreams.
                let stem = is_ours(&entry.path())?;
                Some((entry.metadata().ok()?.modified().ok()?, stem))
            })
            .collect();
        stems.sort();
        let too_many = stems.len().saturating_sub(MAX_PER_UPSTREAM);
        let old = stems.into_iter().map(|(_, stem)| stem).filter(|stem| *stem != self.stem);
        for stem in old.take(too_many) {
            for of in Kind::ALL.map(file_of).into_iter().chain([ABOUT]) {
                let _ = fs::remove_file(self.folder.join(format!("{stem}.{of}")));
            }
        }
    }

    fn path(&self, of: &str) -> PathBuf {
        self.folder.join(format!("{}.{of}", self.stem))
    }
}

/// A list in short: the same while the process lives, and only then.
pub(crate) fn digest(items: &[Item]) -> u64 {
    cpu_bound::run(items.len(), || {
        let mut digest = DefaultHasher::new();
        for item in items {
            item.definition.to_bytes().hash(&mut digest);
        }
        digest.finish()
    })
}

fn item(kind: Kind, line: &Object) -> Option<Item> {
    let item = Item::parse(kind, line.get_bytes("definition")?).ok()?;
    Some(Item { needs_task: line.get("needsTask") == Some("true"), ..item })
}

fn file_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Prompt => "prompts",
        Kind::Tool => "tools",
        Kind::Resource => "resources",
        Kind::Template => "templates",
    }
}

/// The file of what an upstream says of itself.
const ABOUT: &str = "about";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use crate::gateway::lists::list_cache::*;

    fn kept(folder: &Path, stem: u32) -> Kept {
        let name = "hub-".to_owned();
        Kept { folder: folder.join("catalog"), stem: format!("{name}{stem:032x}"), name }
    }

    fn snapshot(kind: Kind, definitions: &[&'static str], is_private: bool) -> Snapshot {
        let items = definitions.iter().map(|text| Item::parse(kind, (*text).into()).expect(text));
        Snapshot { items: items.collect(), fresh_until: None, is_private, cut: None }
    }

    /// Keeps something of everything.
    fn fill(kept: &Kept) {
        let mut tools = snapshot(Kind::Tool, &[r#"{"name":"t","n":1e400}"#], true);
        tools.items[0].needs_task = true;
        kept.write(Kind::Tool, &tools).expect("kept");
        let prompts = [r#"{"name":"a"}"#, "{\"name\":\n\"b\"}"];
        kept.write(Kind::Prompt, &snapshot(Kind::Prompt, &prompts, false)).expect("kept");
        kept.write(Kind::Resource, &snapshot(Kind::Resource, &[], false)).expect("kept");
        kept.write(Kind::Template, &snapshot(Kind::Template, &[], false)).expect("kept");
        let declared = Object::parse(r#"{"completions":{},"extensions":{"x/a":{}}}"#);
        let capabilities = Capabilities::read(&declared.expect("an object"));
        let introduction = Introduction { capabilities, instructions: Some("say\nso".into()) };
        kept.introduce(&introduction).expect("kept");
    }

    #[test]
    fn what_was_kept_is_found_and_nobody_else_can_read_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let kept = kept(folder.path(), 1);
        assert!(kept.read().is_none());
        fill(&kept);
        let found = kept.read().expect("all of it");
        assert_eq!(found.introduction.instructions.as_deref(), Some("say\nso"));
        assert!(found.introduction.capabilities.completions);
        let tools = &found.snapshots[Kind::Tool.index()];
        assert_eq!(tools.items[0].definition.to_bytes(), r#"{"name":"t","n":1e400}"#);
        assert!(tools.is_private && tools.items[0].needs_task);
        assert_eq!(found.snapshots[Kind::Prompt.index()].items.len(), 2);
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&kept.folder), 0o700);
        for entry in fs::read_dir(&kept.folder).expect("a folder") {
            assert_eq!(mode(&entry.expect("a file").path()), 0o600);
        }
    }

    #[test]
    fn what_is_torn_missing_of_another_version_or_too_large_is_nothing_and_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let kept = kept(folder.path(), 1);
        let damages: [fn(&str) -> Option<String>; 6] = [
            |_| None,
            |text| Some(text[..text.len() - 1].to_owned()),
            |text| Some(text.replace("\"version\":1", "\"version\":2")),
            |text| Some(format!("{text}{{}}\n")),
            |text| Some(text.replace("\"name\":\"a\"", "\"name\":7")),
            |text| Some(text.replace("prompts", "tools")),
        ];
        for (at, damage) in damages.into_iter().enumerate() {
            fill(&kept);
            let path = kept.path("prompts");
            let text = fs::read_to_string(&path).expect("it was written");
            match damage(&text) {
                Some(damaged) => fs::write(&path, damaged).expect("written"),
                None => fs::remove_file(&path).expect("removed"),
            }
            assert!(kept.read().is_none(), "{at}");
        }
        fill(&kept);
        assert!(kept.read().is_some());
        let big: &'static str =
            Box::leak(format!(r#"{{"name":"t","x":"{}"}}"#, "x".repeat(60_000)).into_boxed_str());
        let many = snapshot(Kind::Tool, &vec![big; 600], false);
        assert!(kept.write(Kind::Tool, &many).is_err());
        assert!(kept.read().is_none(), "and what was there before is not shown either");
    }

    #[test]
    fn of_one_upstream_the_last_settings_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let of_another = Kept {
            name: "hub-2-".into(),
            stem: format!("hub-2-{:032x}", 1),
            folder: folder.path().join("catalog"),
        };
        fill(&of_another);
        (0..12).for_each(|stem| fill(&kept(folder.path(), stem)));
        let files = fs::read_dir(folder.path().join("catalog")).expect("a folder").count();
        assert_eq!(files, 5 * (MAX_PER_UPSTREAM + 1));
        assert!(kept(folder.path(), 11).read().is_some() && of_another.read().is_some());
    }
}
