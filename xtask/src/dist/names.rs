//! Names under which Weir is released: `deploy/packages/names.toml`.

use crate::root;

/// Name of Weir for a way to install, such as `npm`.
pub(super) fn of(way: &str) -> Result<String, String> {
    let path = "deploy/packages/names.toml";
    let text = super::read(&root().join(path))?;
    let section = text.split("\n[").skip(1).find_map(|it| it.strip_prefix(way)?.strip_prefix(']'));
    let name = section.unwrap_or_default().lines().find_map(|line| line.strip_prefix("name = \""));
    let name = name.and_then(|line| line.strip_suffix('"'));
    name.map(str::to_owned).ok_or_else(|| format!("{path} has no name for {way}"))
}
