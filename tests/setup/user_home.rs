//! A user's home folder with a project in it and the clients' files.

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use tempfile::TempDir;

/// A client: its name, its fixture, its file in the home and its file in a project.
pub(crate) struct Client {
    pub(crate) name: &'static str,
    pub(crate) fixture: &'static str,
    pub(crate) user: &'static str,
    pub(crate) project: Option<&'static str>,
}

const fn client(
    name: &'static str,
    fixture: &'static str,
    user: &'static str,
    project: Option<&'static str>,
) -> Client {
    Client { name, fixture, user, project }
}

const DESKTOP: &str = if cfg!(target_os = "macos") {
    "Library/Application Support/Claude/claude_desktop_config.json"
} else {
    ".config/Claude/claude_desktop_config.json"
};
const VSCODE: &str = if cfg!(target_os = "macos") {
    "Library/Application Support/Code/User/mcp.json"
} else {
    ".config/Code/User/mcp.json"
};

pub(crate) const CLIENTS: [Client; 16] = [
    client("claude-desktop", "claude-desktop.json", DESKTOP, None),
    client("claude-code", "claude-code.json", ".claude.json", Some(".mcp.json")),
    client("vscode", "vscode.jsonc", VSCODE, Some(".vscode/mcp.json")),
    client("cursor", "cursor.json", ".cursor/mcp.json", Some(".cursor/mcp.json")),
    client("codex", "codex.toml", ".codex/config.toml", Some(".codex/config.toml")),
    client("gemini", "gemini.json", ".gemini/settings.json", Some(".gemini/settings.json")),
    client("zed", "zed.jsonc", ".config/zed/settings.json", Some(".zed/settings.json")),
    client("windsurf", "windsurf.json", ".codeium/windsurf/mcp_config.json", None),
    client("copilot", "copilot.json", ".copilot/mcp-config.json", Some(".mcp.json")),
    client("kiro", "kiro.json", ".kiro/settings/mcp.json", Some(".kiro/settings/mcp.json")),
    client("junie", "junie.json", ".junie/mcp/mcp.json", Some(".junie/mcp/mcp.json")),
    client("cline", "cline.json", ".cline/data/settings/cline_mcp_settings.json", None),
    client("lm-studio", "lm-studio.json", ".lmstudio/mcp.json", None),
    client("opencode", "opencode.jsonc", ".config/opencode/opencode.json", Some("opencode.json")),
    client("goose", "goose.yaml", ".config/goose/config.yaml", None),
    client("qwen", "qwen.json", ".qwen/settings.json", Some(".qwen/settings.json")),
];

impl Client {
    /// Text of the fixture.
    pub(crate) fn text(&self) -> String {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/clients");
        std::fs::read_to_string(fixtures.join(self.fixture)).expect("a fixture")
    }
}

pub(crate) struct UserHome {
    _folder: TempDir,
    home: PathBuf,
}

/// Result of a command.
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl UserHome {
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        // The program sees the resolved path where the system's folder is a link.
        let home = folder.path().canonicalize().expect("it is there");
        std::fs::create_dir(home.join("project")).expect("made");
        Self { _folder: folder, home }
    }

    /// Home folder with the client's fixture at the client's place.
    pub(crate) fn with(client: &Client) -> Self {
        let user_home = Self::new();
        user_home.write(client.user, &client.text());
        user_home
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.home.join(path.trim_start_matches('/'))
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().expect("it is in a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    }

    pub(crate) fn read(&self, path: &str) -> String {
        let path = self.path(path);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Writes a program that is an MCP server with one prompt; returns its path.
    pub(crate) fn server(&self, name: &str) -> String {
        use std::os::unix::fs::PermissionsExt;
        self.write(&format!("served/{name}/prompts/{name}.md"), "---\n---\nA text.\n");
        let config = format!("served/{name}/weir.toml");
        self.write(&config, "[upstreams.library]\nprompts_dir = \"prompts\"\n");
        let (program, config) = (env!("CARGO_BIN_EXE_weir"), self.path(&config));
        let script = format!("#!/bin/sh\nexec {program} stdio --config {}\n", config.display());
        self.write(&format!("bin/{name}"), &script);
        let path = self.path(&format!("bin/{name}"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("ours");
        path.display().to_string()
    }

    /// Names of the files in a folder, sorted.
    pub(crate) fn files(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder)).into_iter().flatten();
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.expect("readable").file_name().to_string_lossy().into_owned()
        };
        let mut names: Vec<_> = entries.map(name).collect();
        names.sort();
        names
    }

    /// Runs Weir in the project.
    pub(crate) fn weir(&self, arguments: &[&str]) -> Done {
        self.weir_with(arguments, &[])
    }

    /// Runs Weir in the project with these variables.
    pub(crate) fn weir_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Done {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        // Tokens and folders in the tests' own environment do not apply.
        let path = std::env::var_os("PATH").unwrap_or_default();
        let command = command.env_clear().env("PATH", path).env("HOME", &self.home);
        let command = command.current_dir(self.path("project")).envs(variables.iter().copied());
        let output = command.args(arguments).output().expect("it runs");
        let text = |bytes: Vec<u8>| self.plain(&String::from_utf8(bytes).expect("it writes text"));
        let code = output.status.code().expect("it exits");
        Done { code, out: text(output.stdout), err: text(output.stderr) }
    }

    /// Text without the parts that differ from run to run.
    pub(crate) fn plain(&self, text: &str) -> String {
        let text = text.replace(&self.home.display().to_string(), "~");
        let text = text.replace(env!("CARGO_BIN_EXE_weir"), "/usr/local/bin/weir");
        let mut parts = text.split("weir-backup-");
        let first = parts.next().unwrap_or_default().to_owned();
        // A timestamp has 16 characters.
        parts.fold(first, |text, part| text + "weir-backup-TIME" + part.get(16..).unwrap_or(""))
    }
}

/// Permissions of a file as an octal number.
#[cfg(unix)]
pub(crate) fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777
}
