//! Tests of valid files: defaults, inheritance, access. The submodules test mistakes, each with its
//! exact rendering, and the completeness of the example.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod egress;
mod example;
mod example_file;
mod files;
mod leaks;
mod limits;
mod missing;
mod mistakes;
mod schema;
mod secret_files;
mod secrets;

use std::path::Path;
use std::time::{Duration, SystemTime};

use super::*;
use weir_mcp::kind::Kind;
use weir_mcp::pattern::AllowDeny;
use weir_mcp::revision::Era;
use weir_upstream::UpstreamSource;
use weir_upstream::connect::{ChildCommand, LoginPath};
use weir_upstream::{HttpTransport, Timeouts, UpstreamLimits};

fn parse(text: &str) -> Result<Config, ConfigReport> {
    Config::parse(text, Path::new("weir.toml"), &Options::default())
}

fn config(text: &str) -> Config {
    parse(text).unwrap()
}

/// Folder with a configuration, and the variables that it may contain.
struct Home {
    folder: tempfile::TempDir,
    options: Options,
}

impl Home {
    fn new(files: &[(&str, &str)]) -> Self {
        let home = Self { folder: tempfile::tempdir().unwrap(), options: Options::default() };
        for (path, text) in files {
            home.write(path, text);
        }
        home
    }

    fn with(mut self, variables: &[(&str, &str)]) -> Self {
        self.options.environment = variables.iter().copied().collect();
        self
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.folder.path().join(path)
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        write_private(&path, text);
    }

    fn load(&self) -> Result<Config, ConfigReport> {
        Config::load(&self.path("weir.toml"), &self.options)
    }

    /// Returns the report, with paths relative to the folder.
    fn mistakes(&self) -> String {
        self.local(&self.load().unwrap_err().to_string())
    }

    /// Returns a line for each problem, with paths relative to the folder.
    fn lines(&self) -> String {
        let problems = match self.load() {
            Ok(config) => config.warnings,
            Err(report) => report.problems().to_vec(),
        };
        let lines: Vec<_> = problems.iter().map(|problem| format!("{problem:?}")).collect();
        self.local(&lines.join("\n"))
    }

    fn local(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.folder.path().display()), "")
    }
}

/// Writes a file that only its owner may read.
fn write_private(path: &Path, text: impl AsRef<[u8]>) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

const PROMPT_LIBRARY: &str = "[upstreams.guide]\nprompts_dir = \"./prompts\"\n";

#[test]
fn a_lazy_upstream_is_no_library_is_not_required_and_alone_has_an_idle_time() {
    let lazy = config(
        r#"
        [defaults]
        lazy = true
        timeouts.idle = "10m"
        [upstreams.guide]
        prompts_dir = "/p"
        required = true
        [upstreams.web]
        url = "https://example.com/mcp"
        [upstreams.up]
        command = "x"
        lazy = false
        required = true
        "#,
    );
    let messages: Vec<_> =
        lazy.upstreams.iter().map(|it| (it.settings.lazy, it.settings.timeouts.idle)).collect();
    assert_eq!(messages, [(false, None), (true, Some(Duration::from_secs(600))), (false, None)]);
    let messages = |text: &str| {
        let home = Home::new(&[("weir.toml", text), ("p/a.md", "a")]);
        home.lines()
    };
    insta::assert_snapshot!(messages(
        r#"[defaults]
lazy = true
timeouts.idle = "0s"
[upstreams.guide]
prompts_dir = "p"
lazy = true
[upstreams.web]
url = "https://example.com/mcp"
required = true
[upstreams.up]
command = "x"
lazy = false
timeouts.idle = "10m"
[upstreams.soon]
command = "x"
timeouts.idle = "10ms"
"#
    ), @r#"
    weir.toml:3:17: defaults.timeouts.idle: zero never means unlimited (write the limit that you want, or remove the key for the default)
    weir.toml:6:8: upstreams.guide.lazy: has no effect on a prompts_dir, which has no connection (remove it)
    weir.toml:9:12: upstreams.web.required: this upstream is lazy, and Weir cannot know whether a stopped server would start (remove required, or set lazy = false here)
    weir.toml:13:17: upstreams.up.timeouts.idle: this upstream is not lazy, so it is never stopped when idle (set lazy = true beside timeouts, or remove it)
    weir.toml:16:17: upstreams.soon.timeouts.idle: this is less than a second (write at least "1s")
    "#);
}

#[test]
fn an_upstream_inherits_what_it_does_not_say() {
    let config = config(
        r#"
        [defaults]
        era = "legacy"
        timeouts = { call = "5s", list = "1s" }
        limits.max_pages = 3
        [upstreams.web]
        url = "https://example.com/mcp"
        timeouts.list = "2s"
        [upstreams.child]
        command = "x"
        era = "modern"
        limits.concurrency = 7
        "#,
    );
    let [web, child] = &config.upstreams[..] else { panic!("two upstreams") };
    let timeouts = Timeouts {
        call: Duration::from_secs(5),
        list: Duration::from_secs(1),
        ..Timeouts::default()
    };
    let limits = UpstreamLimits {
        concurrency: 256,
        waiting: 128,
        wait: Duration::from_secs(1),
        max_message: 8 << 20,
        max_items: 10_000,
        max_pages: 3,
        max_list: 32 << 20,
    };
    assert_eq!((web.settings.era, web.settings.limits), (Some(Era::Legacy), limits));
    assert_eq!(web.settings.timeouts, Timeouts { list: Duration::from_secs(2), ..timeouts });
    assert_eq!((child.settings.era, child.settings.timeouts), (Some(Era::Modern), timeouts));
    assert_eq!(child.settings.limits, UpstreamLimits { concurrency: 7, ..limits });
}

#[test]
fn a_transport_is_found_out_unless_it_is_written() {
    let transport = |line: &str| {
        let text = format!("[upstreams.a]\nurl = \"http://h/\"\n{line}\n");
        let UpstreamSource::Http { transport, .. } = config(&text).upstreams[0].settings.source
        else {
            panic!("a url")
        };
        transport
    };
    assert_eq!(transport(""), None);
    assert_eq!(transport("transport = \"auto\""), None);
    assert_eq!(transport("transport = \"http\""), Some(HttpTransport::Http));
    assert_eq!(transport("transport = \"sse\""), Some(HttpTransport::Sse));
}

#[test]
fn concurrency_depends_on_the_kind_of_upstream_unless_it_is_written() {
    let text = "[upstreams.a]\ncommand = \"x\"\n[upstreams.b]\nurl = \"http://h/\"\n[upstreams.c]\nprompts_dir = \"x\"\n";
    let concurrency = |text: &str| {
        config(text).upstreams.iter().map(|u| u.settings.limits.concurrency).collect::<Vec<_>>()
    };
    assert_eq!(concurrency(text), [64, 256, 64]);
    assert_eq!(concurrency(&format!("[defaults]\nlimits.concurrency = 9\n{text}")), [9, 9, 9]);
}

#[test]
fn upstreams_keep_the_order_of_the_file_and_disabled_ones_are_left_out() {
    let config = config(
        r#"
        [roles.staff]
        prompts.allow = ["off/*"]
        [upstreams.zebra]
        command = "x"
        [upstreams.off]
        command = "x"
        prefix = "ant"
        enabled = false
        [upstreams.ant]
        command = "x"
        "#,
    );
    assert_eq!(config.upstreams.iter().map(|u| u.name()).collect::<Vec<_>>(), ["zebra", "ant"]);
    assert_eq!(config.warnings, []);
}

#[test]
fn relative_folders_start_from_the_folder_of_the_file() {
    let text = "[upstreams.a]\nprompts_dir = \"./prompts\"\n[upstreams.b]\ncommand = \"./x\"\ncwd = \"/srv\"\n";
    let config =
        Config::parse(text, Path::new("/etc/weir/weir.toml"), &Options::default()).unwrap();
    let [a, b] = &config.upstreams[..] else { panic!("two upstreams") };
    assert_eq!(a.settings.source, UpstreamSource::Library { dir: "/etc/weir/./prompts".into() });
    let UpstreamSource::Process(ChildCommand { program, cwd, .. }) = &b.settings.source else {
        panic!("a process")
    };
    assert_eq!((program.as_str(), cwd.as_deref()), ("./x", Some(Path::new("/srv"))));
}

#[test]
fn variables_to_pass_on_are_those_of_the_upstream_and_of_the_defaults() {
    let config = config(
        r#"
        [defaults]
        pass_env = ["UV_*"]
        login_path = "never"
        [upstreams.a]
        command = "x"
        pass_env = ["NOTION_TOKEN"]
        [upstreams.b]
        command = "x"
        "#,
    );
    let [a, b] = &config.upstreams[..] else { panic!("two upstreams") };
    assert_eq!(
        (&a.pass_env[..], &b.pass_env[..]),
        (&["NOTION_TOKEN".to_owned(), "UV_*".to_owned()][..], &["UV_*".to_owned()][..])
    );
    for upstream in [a, b] {
        let UpstreamSource::Process(command) = &upstream.settings.source else {
            panic!("a process")
        };
        assert_eq!(command.login_path, LoginPath::Never);
    }
}

#[test]
fn a_secret_is_not_in_the_debug_output() {
    let config = config(
        r#"
        [upstreams.a]
        command = "x"
        env = { TOKEN = "hunter2", "${X}" = "$${Y}" }
        [upstreams.b]
        url = "http://h/"
        headers = { Authorization = "hunter2" }
        rename = { "prompts/a/b" = "c", "tools/x" = "c" }
        "#,
    );
    assert!(!format!("{config:?}").contains("hunter2"));
    let [a, b] = &config.upstreams[..] else { panic!("two upstreams") };
    let UpstreamSource::Process(ChildCommand { env, .. }) = &a.settings.source else {
        panic!("a process")
    };
    assert_eq!(
        env.iter().map(|(_, secret)| secret.expose()).collect::<Vec<_>>(),
        ["hunter2", "${Y}"]
    );
    let rename = |kind, from: &str| (kind, from.to_owned(), "c".to_owned());
    assert_eq!(b.exports.rename, [rename(Kind::Prompt, "a/b"), rename(Kind::Tool, "x")]);
}

#[test]
fn a_client_has_a_role_or_one_of_its_own() {
    let hash = |digit: &str| digit.repeat(64);
    let config = config(&format!(
        "{PROMPT_LIBRARY}[clients.zoe]\nkey_sha256 = [\"{}\", \"{}\"]\nrole = \"local\"\nexpires = 2000-03-01T01:00:00+01:00\n\
         [clients.ci]\nkey_sha256 = [\"{}\"]\nprompts.allow = [\"guide/*\"]\n",
        hash("a"),
        hash("B"),
        hash("c"),
    ));
    let moment = SystemTime::UNIX_EPOCH + Duration::from_secs(951_868_800);
    let client = |name: &str, key_sha256, role: &str, expires| ClientCredentials {
        name: name.to_owned(),
        key_sha256,
        role: role.to_owned(),
        certificates: Vec::new(),
        expires,
    };
    assert_eq!(
        config.clients,
        [
            client("zoe", vec![[0xaa; 32], [0xbb; 32]], "local", Some(moment)),
            client("ci", vec![[0xcc; 32]], "client:ci", None),
        ]
    );
    let library = AllowDeny::new(&["guide/*"], &[]);
    assert_eq!(config.roles["client:ci"], Role { prompts: library, ..Role::default() });
    assert_eq!(config.roles["local"], Role::everything());
    assert!(!config.auth.anonymous);
}

#[test]
fn a_role_that_is_written_allows_what_it_says_and_no_more() {
    let config = config(&format!("{PROMPT_LIBRARY}[roles.local]\ntools.allow = [\"*\"]\n"));
    let only_tools = Role { tools: AllowDeny::everything(), ..Role::default() };
    assert_eq!(config.roles.into_iter().collect::<Vec<_>>(), [("local".to_owned(), only_tools)]);
}

#[test]
fn a_pattern_of_an_upstream_is_added_and_one_of_the_same_name_replaces_the_general_one() {
    let config = config(
        r#"
        [guard]
        redact = { a = "x", b = "y" }
        [upstreams.web]
        url = "http://h/"
        guard.redact = { b = "z", c = "w" }
        "#,
    );
    let pattern =
        |name: &str, text: &str| weir_access::guard::RedactionPattern::new(name, text).expect(text);
    let expected = [pattern("a", "x"), pattern("b", "z"), pattern("c", "w")];
    assert_eq!(config.upstreams[0].guard.redact, expected);
}

#[test]
fn who_needs_a_key_depends_on_the_address_and_the_clients() {
    let anonymous = |listen: &str, mode: &str, options: &Options| {
        let text =
            format!("{PROMPT_LIBRARY}[server]\nlisten = \"{listen}\"\n[auth]\nmode = \"{mode}\"\n");
        Config::parse(&text, Path::new("weir.toml"), options)
            .ok()
            .map(|config| config.auth.anonymous)
    };
    let careful = Options::default();
    let bold = Options { allow_anonymous_network: true, ..Options::default() };
    assert_eq!(anonymous("[::1]:1", "auto", &careful), Some(true));
    assert_eq!(anonymous("[::ffff:127.0.0.1]:1", "auto", &careful), Some(true));
    assert_eq!(anonymous("0.0.0.0:1", "auto", &bold), Some(false));
    assert_eq!(anonymous("127.0.0.1:1", "required", &careful), Some(false));
    assert_eq!(anonymous("[::]:1", "anonymous", &careful), None);
    assert_eq!(anonymous("[::]:1", "anonymous", &bold), Some(true));
}

#[test]
fn the_host_of_the_public_url_is_allowed() {
    let hosts = |url: &str| {
        config(&format!(
            "{PROMPT_LIBRARY}[server]\npublic_url = \"{url}\"\nallowed_hosts = [\"A.b\"]\n"
        ))
        .server
        .allowed_hosts
    };
    assert_eq!(hosts("https://Mcp.Example.com:443/x"), ["a.b", "mcp.example.com"]);
    assert_eq!(hosts("https://mcp.example.com:80"), ["a.b", "mcp.example.com:80"]);
}

#[test]
fn revisions_are_served_newest_first() {
    let versions = config(&format!(
        "{PROMPT_LIBRARY}[protocol]\nversions = [\"2024-11-05\", \"2026-07-28\"]\n"
    ))
    .protocol
    .versions;
    let versions: Vec<_> = versions.iter().map(|revision| revision.as_str()).collect();
    assert_eq!(versions, ["2026-07-28", "2024-11-05"]);
}

#[test]
fn durations_and_sizes_are_read_with_their_units() {
    let server = |lines: &str| {
        parse(&format!("[server]\n{lines}\n{PROMPT_LIBRARY}")).ok().map(|config| config.server)
    };
    let grace = |text: &str| {
        server(&format!("shutdown_grace = {text}")).map(|s| s.shutdown_grace.as_millis())
    };
    let body = |text: &str| server(&format!("max_body = {text}")).map(|s| s.max_body);
    for (text, millis) in [
        ("250ms", 250),
        ("60s", 60_000),
        ("10m", 600_000),
        ("1h", 3_600_000),
        ("8760h", 31_536_000_000),
    ] {
        assert_eq!(grace(&format!("{text:?}")), Some(millis), "{text}");
    }
    for text in [
        "\"8761h\"",
        "\"99999999999999999h\"",
        "\"1.5s\"",
        "\"-1s\"",
        "\"s\"",
        "\"1d\"",
        "\" 1s\"",
        "\"60\"",
        "60",
        "true",
    ] {
        assert_eq!(grace(text), None, "{text}");
    }
    for (text, bytes) in [
        ("\"64KiB\"", 65_536),
        ("\"4MiB\"", 4 << 20),
        ("\"1GiB\"", 1 << 30),
        ("4096", 4096),
        ("0x10", 16),
    ] {
        assert_eq!(body(text), Some(bytes), "{text}");
    }
    for text in ["\"4MB\"", "\"4\"", "-4", "4.0", "\"99999999999GiB\"", "\"MiB\""] {
        assert_eq!(body(text), None, "{text}");
    }
}
