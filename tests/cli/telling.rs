//! Colors, versions, and scripts for shells.

use assert_cmd::Command;
use insta::assert_snapshot;

use super::{folder, shown};

/// What is told of a configuration with a mistake, and of a wrong argument.
fn told(arguments: &[&str], variables: &[(&str, &str)]) -> [String; 2] {
    let folder = folder("[server]\nlistn = 1\n");
    [&["list"][..], &["list", "--nonsense"]].map(|command| {
        let mut weir = Command::from_std(crate::program());
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
            weir.env_remove(name);
        }
        let weir = weir.args(command).args(arguments).envs(variables.iter().copied());
        let output = weir.current_dir(folder.path()).output().expect("it runs");
        String::from_utf8(output.stderr).expect("text")
    })
}

#[test]
fn colors_are_for_terminals_that_want_them_and_for_whoever_insists() {
    let colored = |arguments: &[&str], variables: &[(&str, &str)]| {
        told(arguments, variables).map(|text| text.contains('\u{1b}'))
    };
    for (arguments, variables, expected) in [
        (&[][..], &[][..], false),
        (&["--color", "always"], &[], true),
        (&["--color=always"], &[("NO_COLOR", "1")], true),
        (&[], &[("CLICOLOR_FORCE", "1")], true),
        (&[], &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], false),
        (&["--color=never"], &[("CLICOLOR_FORCE", "1")], false),
    ] {
        assert_eq!(colored(arguments, variables), [expected; 2], "{arguments:?} {variables:?}");
    }
}

#[test]
fn version_tells_what_is_spoken() {
    let folder = folder("");
    let all = [
        shown(folder.path(), &["version"]),
        shown(folder.path(), &["version", "--json"]),
        shown(folder.path(), &["--version"]),
    ];
    let all = all.concat().replace(env!("CARGO_PKG_VERSION"), "VERSION");
    let all = all.replace(std::env::consts::ARCH, "ARCH").replace(std::env::consts::OS, "OS");
    assert_snapshot!(all, @r#"
    $ weir version
    weir VERSION (ARCH OS)
    revisions  2026-07-28 (modern); 2024-11-05, 2025-03-26, 2025-06-18, 2025-11-25 (legacy)
    clients    http, http+sse, stdio
    upstreams  http, http+sse, stdio, prompt library
    => 0
    $ weir version --json
    {"version":"VERSION","arch":"ARCH","os":"OS","revisions":["2024-11-05","2025-03-26","2025-06-18","2025-11-25","2026-07-28"],"clients":["http","http+sse","stdio"],"upstreams":["http","http+sse","stdio","prompt library"]}
    => 0
    $ weir --version
    weir VERSION
    => 0
    "#);
}

#[test]
fn there_is_a_script_for_every_shell() {
    let folder = folder("");
    for (shell, word) in [
        ("bash", "complete -F _weir"),
        ("zsh", "#compdef weir"),
        ("fish", "complete -c weir"),
        ("elvish", "edit:completion"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let shown = shown(folder.path(), &["completions", shell]);
        assert!(shown.contains(word) && shown.ends_with("=> 0\n"), "{shell}");
    }
}
