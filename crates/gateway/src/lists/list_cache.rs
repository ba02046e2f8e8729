//! Cache of an upstream's last lists on disk. After a start they are published until the upstream
//! has been listed.
//!
//! There is a file per kind, and one for the upstream's capabilities and instructions, named by the
//! upstream and a hash of its settings and of the user's sign-in, so that lists of another account,
//! program or server are not used.
//!
//! Invariants: a file is replaced as a whole or not at all, so several processes may share a
//! folder; it is readable by its owner only, and contains no secret of the configuration: marks
//! replace those that a server repeats. An incomplete or too large file, or one of another version,
//! is ignored and replaced. Only lists of at most [`MAX_BYTES`] are cached, and for one upstream
//! those of its last [`MAX_PER_UPSTREAM`] settings. Cached lists are what the server has sent, and
//! pass the same checks as new ones.
//!
//! Decision: docs/decisions/0025-cached-lists.md

use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bytes::Bytes;

use crate::lists::hidden_secrets::HiddenSecrets;
use weir_access::catalog::{ListSnapshot, UpstreamInfo};
use weir_base::files::regular_file;
use weir_base::json::{self, Object};
use weir_base::tasks::cpu_bound;
use weir_mcp::capabilities::Capabilities;
use weir_mcp::definition::item::Item;
use weir_mcp::kind::Kind;
use weir_oauth::SignInNumber;
use weir_upstream::{Settings, UpstreamSource};

/// Maximum size of a file.
pub(crate) const MAX_BYTES: usize = 32 << 20;
/// Maximum number of settings of one upstream with cached lists.
const MAX_PER_UPSTREAM: usize = 8;
/// Version of the file format.
const VERSION: &str = "2";
/// Maximum length of a line; a definition is much shorter.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Cache files of one upstream with its current settings.
#[derive(Debug, Clone)]
pub(crate) struct ListCache {
    folder: PathBuf,
    /// The upstream's name and a dash.
    name: String,
    /// Prefix of the names of all its files.
    stem: String,
    secrets: HiddenSecrets,
}

/// Contents of the cache of one upstream.
#[derive(Debug)]
pub(crate) struct CachedLists {
    pub(crate) info: UpstreamInfo,
    /// By [`Kind::index`].
    pub(crate) snapshots: [ListSnapshot; 4],
}

impl ListCache {
    /// The cache of an upstream with these settings and this sign-in; `None` if its lists are not
    /// cached.
    pub(crate) fn of(settings: &Settings, sign_in: SignInNumber) -> Option<Self> {
        let folder = settings.list_cache_dir.clone()?;
        // A folder of prompts is on this disk already, and a notice is known. While a value is
        // missing, the key of the lists is unknown.
        if let UpstreamSource::Library { .. }
        | UpstreamSource::Notice { .. }
        | UpstreamSource::Unresolved { .. } = settings.source
        {
            return None;
        }
        let (name, stem) = (format!("{}-", settings.name), stem(settings));
        let sign_in = sign_in.text().map(|number| format!("-{number}"));
        let stem = stem + &sign_in.unwrap_or_default();
        let secrets = HiddenSecrets::new(settings.source.secrets());
        Some(Self { folder, name, stem, secrets })
    }

    /// Removes the caches of an upstream with these settings for other sign-ins than this one.
    /// Blocks.
    pub(crate) fn remove_former(settings: &Settings, sign_in: Option<SignInNumber>) {
        let Some(folder) = &settings.list_cache_dir else { return };
        let kept = sign_in.and_then(|sign_in| Self::of(settings, sign_in)).map(|it| it.stem);
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let file_stem = name.to_str().and_then(|name| name.rsplit_once('.')).map(|it| it.0);
            let of_settings = file_stem.filter(|it| it.starts_with(&stem(settings)));
            if of_settings.is_some_and(|stem| kept.as_deref() != Some(stem)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Reads the cache; `None` unless it is complete. Blocks.
    pub(crate) fn read(&self) -> Option<CachedLists> {
        let (_, about) = self.read_file(ABOUT)?;
        let [about] = &about[..] else { return None };
        let info = UpstreamInfo {
            capabilities: Capabilities::read(&about.get_object("capabilities")?),
            instructions: about.get_string("instructions").map(|text| text.as_ref().into()),
        };
        let snapshot = |kind: Kind| {
            let (head, lines) = self.read_file(file_name(kind))?;
            let items = lines.iter().map(|line| parse_item(kind, line)).collect::<Option<_>>()?;
            let is_private = head.get("private") == Some("true");
            let cut = head.get_string("cut").map(|cut| cut.as_ref().into());
            Some(ListSnapshot { items, fresh_until: None, is_private, cut })
        };
        let [Some(a), Some(b), Some(c), Some(d)] = Kind::ALL.map(snapshot) else { return None };
        Some(CachedLists { info, snapshots: [a, b, c, d] })
    }

    /// Writes a list. Blocks.
    pub(crate) fn write(&self, kind: Kind, snapshot: &ListSnapshot) -> io::Result<()> {
        // Defective items are not used, so they are not cached.
        let items = snapshot.items.iter().filter(|item| item.defect.is_none());
        let line = |item: &Item| {
            let mut line = Object::new();
            line.set("definition", json::on_one_line(item.definition.to_bytes()));
            if item.needs_task {
                line.set("needsTask", "true");
            }
            line.to_bytes()
        };
        let cut = snapshot.cut.as_deref();
        self.write_file(file_name(kind), snapshot.is_private, cut, items.map(line))
    }

    /// Writes the upstream's capabilities and instructions. Blocks.
    pub(crate) fn write_info(&self, info: &UpstreamInfo) -> io::Result<()> {
        let mut about = Object::new();
        about.set("capabilities", info.capabilities.to_object().to_bytes());
        if let Some(text) = &info.instructions {
            about.set("instructions", json::quote(text));
        }
        self.write_file(ABOUT, false, None, [json::on_one_line(about.to_bytes())])?;
        self.remove_old_caches();
        Ok(())
    }

    fn remove(&self) {
        for of in Kind::ALL.map(file_name).into_iter().chain([ABOUT]) {
            let _ = fs::remove_file(self.path(of));
        }
    }

    /// Reads a file: its header line and the other lines.
    fn read_file(&self, of: &str) -> Option<(Object, Vec<Object>)> {
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
        let hidden = head.get_string("hidden");
        if hidden.is_some_and(|hidden| *hidden != *self.secrets.digest()) {
            return None;
        }
        let mut line = || object(self.secrets.reveal(next()?)?);
        let lines = (0..count.min(MAX_BYTES)).map(|_| line()).collect::<Option<_>>()?;
        next().is_none().then_some((head, lines))
    }

    fn write_file(
        &self,
        of: &str,
        is_private: bool,
        cut: Option<&str>,
        lines: impl IntoIterator<Item = Bytes>,
    ) -> io::Result<()> {
        let (mut text, mut count, mut has_marks) = (Vec::new(), 0_usize, false);
        let refuse = |why| {
            // The existing file is outdated.
            let _ = fs::remove_file(self.path(of));
            Err(io::Error::other(why))
        };
        for line in lines {
            let Some((line, is_changed)) = self.secrets.hide(line) else {
                return refuse("it repeats a secret of the configuration");
            };
            has_marks |= is_changed;
            text.extend_from_slice(&line);
            text.push(b'\n');
            count += 1;
            if text.len() > MAX_BYTES - 1_024 {
                return refuse("the list is too large for the cache");
            }
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        // A temporary file is readable by its owner only; it is renamed when it is complete, so
        // that no process reads a part of it.
        let file = tempfile::NamedTempFile::new_in(&self.folder)?;
        let mut writer = BufWriter::new(file);
        let cut = cut.map(json::quote);
        let cut = cut.map(|cut| format!(r#""cut":{},"#, String::from_utf8_lossy(&cut)));
        let hidden = has_marks.then(|| format!(r#""hidden":"{}","#, self.secrets.digest()));
        let more = cut.unwrap_or_default() + &hidden.unwrap_or_default();
        writeln!(
            writer,
            r#"{{"version":{VERSION},"of":"{of}","private":{is_private},{more}"lines":{count}}}"#
        )?;
        writer.write_all(&text)?;
        let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.persist(self.path(of)).map_err(|error| error.error)?;
        Ok(())
    }

    /// Removes the oldest caches of this upstream under other settings.
    fn remove_old_caches(&self) {
        let is_ours = |path: &Path| {
            let name = path.file_name()?.to_str()?;
            let stem = name.strip_prefix(&self.name)?.strip_suffix(&format!(".{ABOUT}"))?;
            // An upstream's name may be a prefix of another's.
            let (settings, sign_in) = stem.split_once('-').unwrap_or((stem, ""));
            let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
            let is_hash = settings.len() == 32 && is_hex(settings) && is_hex(sign_in);
            is_hash.then(|| format!("{}{stem}", self.name))
        };
        let mut stems: Vec<(SystemTime, String)> = fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                // The folder has the files of all upstreams.
                let stem = is_ours(&entry.path())?;
                Some((entry.metadata().ok()?.modified().ok()?, stem))
            })
            .collect();
        stems.sort();
        let too_many = stems.len().saturating_sub(MAX_PER_UPSTREAM);
        let old = stems.into_iter().map(|(_, stem)| stem).filter(|stem| *stem != self.stem);
        for stem in old.take(too_many) {
            Self { stem, ..self.clone() }.remove();
        }
    }

    fn path(&self, of: &str) -> PathBuf {
        self.folder.join(format!("{}.{of}", self.stem))
    }
}

/// Beginning of the names of all caches of an upstream with these settings.
fn stem(settings: &Settings) -> String {
    format!("{}-{}", settings.name, &settings.list_key()[..32])
}

/// Digest of a list, comparable only within this process.
pub(crate) fn digest(items: &[Item]) -> u64 {
    cpu_bound::run(items.len(), || {
        let mut digest = DefaultHasher::new();
        for item in items {
            item.definition.to_bytes().hash(&mut digest);
        }
        digest.finish()
    })
}

fn parse_item(kind: Kind, line: &Object) -> Option<Item> {
    let item = Item::parse(kind, line.get_bytes("definition")?).ok()?;
    Some(Item { needs_task: line.get("needsTask") == Some("true"), ..item })
}

fn file_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Prompt => "prompts",
        Kind::Tool => "tools",
        Kind::Resource => "resources",
        Kind::Template => "templates",
    }
}

/// Name of the file with an upstream's capabilities and instructions.
const ABOUT: &str = "about";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use crate::lists::list_cache::*;
    use weir_base::secrets::secret::Secret;

    fn cache(folder: &Path, stem: u32) -> ListCache {
        cache_with(folder, stem, &[])
    }

    /// Cache of a server that is given these secrets.
    fn cache_with(folder: &Path, stem: u32, secrets: &[&str]) -> ListCache {
        let name = "hub-".to_owned();
        let secrets = HiddenSecrets::new(secrets.iter().map(|it| Secret::from(*it)).collect());
        let (folder, stem) = (folder.join("catalog"), format!("{name}{stem:032x}"));
        ListCache { folder, stem, name, secrets }
    }

    fn snapshot(kind: Kind, definitions: &[&'static str], is_private: bool) -> ListSnapshot {
        let items = definitions.iter().map(|text| Item::parse(kind, (*text).into()).expect(text));
        ListSnapshot { items: items.collect(), fresh_until: None, is_private, cut: None }
    }

    /// Writes all files.
    fn write_all(cache: &ListCache) {
        let mut tools = snapshot(Kind::Tool, &[r#"{"name":"t","n":1e400}"#], true);
        tools.items[0].needs_task = true;
        cache.write(Kind::Tool, &tools).expect("written");
        let prompts = [r#"{"name":"a"}"#, "{\"name\":\n\"b\"}"];
        cache.write(Kind::Prompt, &snapshot(Kind::Prompt, &prompts, false)).expect("written");
        cache.write(Kind::Resource, &snapshot(Kind::Resource, &[], false)).expect("written");
        cache.write(Kind::Template, &snapshot(Kind::Template, &[], false)).expect("written");
        let declared = Object::parse(r#"{"completions":{},"extensions":{"x/a":{}}}"#);
        let capabilities = Capabilities::read(&declared.expect("an object"));
        let info = UpstreamInfo { capabilities, instructions: Some("say\nso".into()) };
        cache.write_info(&info).expect("written");
    }

    #[test]
    fn what_was_kept_is_found_and_nobody_else_can_read_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = cache(folder.path(), 1);
        assert!(cache.read().is_none());
        write_all(&cache);
        let found = cache.read().expect("all of it");
        assert_eq!(found.info.instructions.as_deref(), Some("say\nso"));
        assert!(found.info.capabilities.completions);
        let tools = &found.snapshots[Kind::Tool.index()];
        assert_eq!(tools.items[0].definition.to_bytes(), r#"{"name":"t","n":1e400}"#);
        assert!(tools.is_private && tools.items[0].needs_task);
        assert_eq!(found.snapshots[Kind::Prompt.index()].items.len(), 2);
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&cache.folder), 0o700);
        for entry in fs::read_dir(&cache.folder).expect("a folder") {
            assert_eq!(mode(&entry.expect("a file").path()), 0o600);
        }
    }

    #[test]
    fn what_is_torn_missing_of_another_version_or_too_large_is_nothing_and_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = cache(folder.path(), 1);
        let damages: [fn(&str) -> Option<String>; 6] = [
            |_| None,
            |text| Some(text[..text.len() - 1].to_owned()),
            |text| Some(text.replace("\"version\":2", "\"version\":1")),
            |text| Some(format!("{text}{{}}\n")),
            |text| Some(text.replace("\"name\":\"a\"", "\"name\":7")),
            |text| Some(text.replace("prompts", "tools")),
        ];
        for (at, damage) in damages.into_iter().enumerate() {
            write_all(&cache);
            let path = cache.path("prompts");
            let text = fs::read_to_string(&path).expect("it was written");
            match damage(&text) {
                Some(damaged) => fs::write(&path, damaged).expect("written"),
                None => fs::remove_file(&path).expect("removed"),
            }
            assert!(cache.read().is_none(), "{at}");
        }
        write_all(&cache);
        assert!(cache.read().is_some());
        let big: &'static str =
            Box::leak(format!(r#"{{"name":"t","x":"{}"}}"#, "x".repeat(60_000)).into_boxed_str());
        let many = snapshot(Kind::Tool, &vec![big; 600], false);
        assert!(cache.write(Kind::Tool, &many).is_err());
        assert!(cache.read().is_none(), "the previous lists are not used either");
    }

    #[test]
    fn a_secret_that_a_server_repeats_is_in_no_file_and_in_the_lists_that_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = cache_with(folder.path(), 1, &["canary-1", "can/ary-2"]);
        write_all(&cache);
        let text = r#"{"name":"a","description":"with canary-1, as in ?k=canary-1"}"#;
        cache.write(Kind::Prompt, &snapshot(Kind::Prompt, &[text], false)).expect("written");
        let info = UpstreamInfo {
            instructions: Some("use canary-1".into()),
            ..cache.read().expect("all of it").info
        };
        cache.write_info(&info).expect("written");
        for entry in fs::read_dir(&cache.folder).expect("a folder") {
            let path = entry.expect("a file").path();
            let text = fs::read_to_string(&path).expect("it is text");
            assert!(!text.contains("canary"), "{}: {text}", path.display());
        }
        let found = cache.read().expect("all of it");
        assert_eq!(found.info.instructions.as_deref(), Some("use canary-1"));
        let prompts = &found.snapshots[Kind::Prompt.index()];
        assert_eq!(prompts.items[0].definition.to_bytes(), text);

        // The marks of other secrets mean nothing.
        assert!(cache_with(folder.path(), 1, &["canary-3"]).read().is_none());
        // In another spelling it cannot be restored, so the list is not cached.
        let text = r#"{"name":"a","description":"can\/ary-2"}"#;
        let spelled = snapshot(Kind::Prompt, &[text], false);
        assert!(cache.write(Kind::Prompt, &spelled).is_err() && cache.read().is_none());
        assert!(!cache.path("prompts").exists());
    }

    #[test]
    fn of_one_upstream_the_last_settings_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let of_another = ListCache {
            name: "hub-2-".into(),
            stem: format!("hub-2-{:032x}", 1),
            ..cache(folder.path(), 1)
        };
        write_all(&of_another);
        (0..12).for_each(|stem| write_all(&cache(folder.path(), stem)));
        let files = fs::read_dir(folder.path().join("catalog")).expect("a folder").count();
        assert_eq!(files, 5 * (MAX_PER_UPSTREAM + 1));
        assert!(cache(folder.path(), 11).read().is_some() && of_another.read().is_some());
    }
}
