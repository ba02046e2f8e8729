//! `weir keys`: its output, the files that it writes, and that the printed key authenticates.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use insta::assert_snapshot;
use sha2::{Digest, Sha256};

use super::{folder, shown, weir};

const CONFIG: &str = "\
include = [\"conf.d/*.toml\"]

[upstreams.house]   # the library
prompts_dir = \"prompts\"

[roles.guest]
prompts.allow = [\"house/*\"]
";

const INCLUDED: &str = "\
# Machines.
[clients.ci]
key_sha256 = [\"1111111111111111111111111111111111111111111111111111111111111111\"]   # by hand
prompts.allow = [\"house/*\"]
";

fn folder_with_clients() -> tempfile::TempDir {
    let folder = folder(CONFIG);
    std::fs::create_dir(folder.path().join("conf.d")).expect("made");
    std::fs::write(folder.path().join("conf.d/machines.toml"), INCLUDED).expect("written");
    folder
}

fn read(folder: &Path, file: &str) -> String {
    std::fs::read_to_string(folder.join(file)).expect("it is there")
}

/// Text without the key and without its hash.
fn masked(text: &str, key: &str) -> String {
    let hash = sha256(key);
    text.replace(key, "KEY").replace(&hash, "HASH")
}

fn sha256(key: &str) -> String {
    Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Runs a command that prints a key, and returns the output and the key.
fn key_of(folder: &Path, arguments: &[&str]) -> (String, String) {
    let (code, out, err) = weir(folder, arguments);
    assert_eq!(code, 0, "{err}");
    let key = out.strip_suffix('\n').expect("a line").to_owned();
    assert!(key.starts_with("weir_") && key.len() == 55, "{key}");
    assert!(!err.contains(&key), "{err}");
    (key, err)
}

#[test]
fn a_client_is_made_rotated_and_removed() {
    let folder = folder_with_clients();
    let folder = folder.path();
    let add = ["keys", "add", "ann", "--role", "guest", "--expires", "2099-06-30"];
    let (key, err) = key_of(folder, &add);
    assert_snapshot!(err, @r"
    wrote the client `ann` into weir.toml
    next: give the key to the client, which sends it as `Authorization: Bearer <key>`; it is not shown again
          a running Weir applies the file within seconds
    ");
    assert_snapshot!(masked(&read(folder, "weir.toml"), &key), @r#"
    include = ["conf.d/*.toml"]

    [upstreams.house]   # the library
    prompts_dir = "prompts"

    [roles.guest]
    prompts.allow = ["house/*"]

    [clients.ann]
    key_sha256 = ["HASH"]
    role = "guest"
    expires = 2099-06-30T00:00:00Z
    "#);
    assert_eq!(read(folder, "conf.d/machines.toml"), INCLUDED);
    assert_snapshot!(shown(folder, &["keys", "list"]), @r"
    $ weir keys list
    ann  guest               1 key   expires at 2099-06-30T00:00:00Z
    ci   (rules of its own)  1 key   never expires
    => 0
    ");
    assert_snapshot!(shown(folder, &["keys", "list", "--json"]), @r#"
    $ weir keys list --json
    {"clients":[{"name":"ann","role":"guest","keys":1,"expires":"2099-06-30T00:00:00Z","expired":false},{"name":"ci","keys":1}]}
    => 0
    "#);
    assert_snapshot!(shown(folder, &["list", "--as", "ann"]), @r"
    $ weir list --as ann
    prompts
      house__greeting     Greets somebody.
      house__secret-plan  Nobody may see it.
    => 0
    ");

    let (new, err) = key_of(folder, &["keys", "rotate", "ann"]);
    assert_snapshot!(err, @r"
    wrote a second key of `ann` into weir.toml
    next: a running Weir applies the file within seconds; both keys are valid then
          give the key to the client; it is not shown again
          `weir keys rotate ann --finish` removes the older one, once the client has it
    ");
    let both = read(folder, "weir.toml");
    assert!(both.contains(&format!("[\"{}\", \"{}\"]", sha256(&key), sha256(&new))), "{both}");
    assert_snapshot!(shown(folder, &["keys", "rotate", "ann"]), @r"
    $ weir keys rotate ann
    ! weir: client `ann` has two keys: `weir keys rotate ann --finish` removes the older one first
    => 2
    ");
    assert_snapshot!(shown(folder, &["keys", "rotate", "ann", "--finish"]), @r"
    $ weir keys rotate ann --finish
    ! removed the older key of `ann` from weir.toml
    next: a running Weir applies the file within seconds
    => 0
    ");
    assert_eq!(read(folder, "weir.toml"), both.replace(&format!("\"{}\", ", sha256(&key)), ""));
    assert_snapshot!(shown(folder, &["keys", "rotate", "ann", "--finish"]), @r"
    $ weir keys rotate ann --finish
    ! weir: client `ann` has one key: `weir keys rotate ann` gives it another first
    => 2
    ");

    assert_snapshot!(shown(folder, &["keys", "revoke", "ann"]), @r"
    $ weir keys revoke ann
    ! removed the client `ann` from weir.toml
    next: a running Weir applies the file within seconds; until then the client's keys are valid there
    => 0
    ");
    assert_eq!(read(folder, "weir.toml"), CONFIG);
    let (code, ..) = weir(folder, &["check", "--offline"]);
    assert_eq!(code, 0);
    let left: Vec<_> = std::fs::read_dir(folder).expect("readable").collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

#[test]
fn what_stands_in_an_included_file_is_changed_there() {
    let folder = folder_with_clients();
    let folder = folder.path();
    let (key, _) = key_of(folder, &["keys", "rotate", "ci", "--expires", "2099-01-01"]);
    assert_snapshot!(masked(&read(folder, "conf.d/machines.toml"), &key), @r#"
    # Machines.
    [clients.ci]
    key_sha256 = ["1111111111111111111111111111111111111111111111111111111111111111", "HASH"]   # by hand
    prompts.allow = ["house/*"]
    expires = 2099-01-01T00:00:00Z
    "#);
    let file = "conf.d/machines.toml";
    let add = ["keys", "add", "builder", "--role", "guest", "--file", file];
    let (other, _) = key_of(folder, &add);
    assert_snapshot!(masked(&masked(&read(folder, file), &key), &other), @r#"
    # Machines.
    [clients.ci]
    key_sha256 = ["1111111111111111111111111111111111111111111111111111111111111111", "HASH"]   # by hand
    prompts.allow = ["house/*"]
    expires = 2099-01-01T00:00:00Z

    [clients.builder]
    key_sha256 = ["HASH"]
    role = "guest"
    "#);
    assert_eq!(read(folder, "weir.toml"), CONFIG);
    assert_snapshot!(shown(folder, &["keys", "revoke", "ci"]), @r"
    $ weir keys revoke ci
    ! removed the client `ci` from conf.d/machines.toml
    next: a running Weir applies the file within seconds; until then the client's keys are valid there
    => 0
    ");
    assert_snapshot!(masked(&read(folder, file), &other), @r#"
    # Machines.

    [clients.builder]
    key_sha256 = ["HASH"]
    role = "guest"
    "#);
    assert_snapshot!(shown(folder, &["keys", "revoke", "builder"]), @r#"
    $ weir keys revoke builder
    ! removed the client `builder` from conf.d/machines.toml
    next: a running Weir applies the file within seconds; until then the client's keys are valid there
    note: no client is left, so every program on this machine can connect without a key; set mode = "required" under [auth] to require keys
    => 0
    "#);
    assert_eq!(read(folder, file), "# Machines.\n");
}

#[test]
fn a_client_in_two_files_is_removed_from_both_or_from_none() {
    let folder = folder_with_clients();
    let folder = folder.path();
    let file = "conf.d/machines.toml";
    let (main, included) = (read(folder, "weir.toml"), read(folder, file));
    let main = main + "\n[clients.ci]\nexpires = 2099-01-01T00:00:00Z\n";
    std::fs::write(folder.join("weir.toml"), &main).expect("written");
    let set_mode = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.join(file), mode).expect("ours");
    };
    set_mode(0o444);
    let (code, _, err) = weir(folder, &["keys", "revoke", "ci"]);
    assert!(code == 2 && err.contains("machines.toml was not written: it is read-only"), "{err}");
    assert!(!err.contains("removed"), "{err}");
    assert_eq!((read(folder, "weir.toml"), read(folder, file)), (main, included));
    set_mode(0o644);
    let (code, _, err) = weir(folder, &["keys", "revoke", "ci"]);
    assert_eq!((code, err.matches("removed the client `ci`").count()), (0, 2), "{err}");
}

#[test]
fn a_list_without_entries_is_a_sentence() {
    let folder = folder("[upstreams.house]\nprompts_dir = \"prompts\"\n");
    let output = [["keys", "list"], ["login", "--list"]];
    let output: String = output.iter().map(|it| shown(folder.path(), it)).collect();
    assert_snapshot!(output, @r"
    $ weir keys list
    ! the configuration has no clients: `weir keys add NAME --role ROLE` adds one
    => 0
    $ weir login --list
    ! no upstream of the configuration has an `auth` with which a user signs in
    => 0
    ");
    let (code, out, err) = weir(folder.path(), &["keys", "list", "--json"]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "{\"clients\":[]}\n", ""));
}

#[test]
fn a_dry_run_writes_nothing() {
    let folder = folder_with_clients();
    let folder = folder.path();
    let add = ["keys", "add", "x", "--role", "guest", "--expires", "2099-01-01", "--dry-run"];
    let (code, out, err) = weir(folder, &add);
    let key = err.trim_end().rsplit(' ').next().expect("a key").to_owned();
    assert_eq!(code, 0);
    assert_snapshot!(masked(&format!("{out}! {err}"), &key), @r#"
    [clients.x]
    key_sha256 = ["HASH"]
    role = "guest"
    expires = 2099-01-01T00:00:00Z
    ! the key, if you write these lines: KEY
    "#);
    let (_, out, err) = weir(folder, &["keys", "rotate", "ci", "--dry-run"]);
    let key = err.trim_end().rsplit(' ').next().expect("a key").to_owned();
    assert_snapshot!(masked(&format!("{out}! {err}"), &key), @r#"
    [clients.ci]
    key_sha256 = ["1111111111111111111111111111111111111111111111111111111111111111", "HASH"]   # by hand
    ! the key, if you write these lines: KEY
    "#);
    assert_snapshot!(shown(folder, &["keys", "revoke", "ci", "--dry-run"]), @r#"
    $ weir keys revoke ci --dry-run
    [clients.ci]
    key_sha256 = ["1111111111111111111111111111111111111111111111111111111111111111"]   # by hand
    prompts.allow = ["house/*"]
    => 0
    "#);
    assert_eq!(read(folder, "weir.toml"), CONFIG);
    assert_eq!(read(folder, "conf.d/machines.toml"), INCLUDED);
}

#[test]
fn with_json_all_of_it_is_one_line() {
    let folder = folder_with_clients();
    let folder = folder.path();
    let (code, out, _) = weir(folder, &["keys", "add", "x", "--role", "guest", "--json"]);
    assert_eq!(code, 0);
    let key = out.split('"').find(|part| part.starts_with("weir_")).expect("a key").to_owned();
    assert_snapshot!(masked(&out, &key), @r#"{"client":"x","key":"KEY","sha256":"HASH","file":"weir.toml","written":true}"#);
    let (_, out, _) = weir(folder, &["keys", "revoke", "x", "--json"]);
    assert_snapshot!(out, @r#"{"client":"x","file":"weir.toml","written":true}"#);
}

#[test]
fn what_cannot_be_done_is_told() {
    let folder = folder_with_clients();
    let folder = folder.path();
    let output = [
        &["keys", "add", "ci", "--role", "guest"][..],
        &["keys", "add", "x", "--role", "gest"],
        &["keys", "add", "x", "--role", "operations"],
        &["keys", "add", "x", "--role", "client:ci"],
        &["keys", "add", "a b", "--role", "guest"],
        &["keys", "add", "x", "--role", "guest", "--expires", "soon"],
        &["keys", "add", "x", "--role", "guest", "--expires", "2020-01-01"],
        &["keys", "add", "x", "--role", "guest", "--file", "elsewhere.toml"],
        &["keys", "rotate", "cj"],
        &["keys", "rotate", "nobody"],
        &["keys", "rotate", "ci", "--finish"],
        &["keys", "revoke", "nobody", "--json"],
        &["keys", "list", "--config", "gone.toml"],
    ];
    let output: String = output.iter().map(|arguments| shown(folder, arguments)).collect();
    assert_snapshot!(output, @r#"
    $ weir keys add ci --role guest
    ! weir: there is a client `ci` already: `weir keys rotate ci` gives it another key
    => 2
    $ weir keys add x --role gest
    ! weir: no role `gest`; did you mean `guest`?
    => 2
    $ weir keys add x --role operations
    ! weir: no role `operations` in the configuration, which has guest, local
    => 2
    $ weir keys add x --role client:ci
    ! weir: no role `client:ci` in the configuration, which has guest, local
    => 2
    $ weir keys add a b --role guest
    ! weir: a client's name is 1 to 64 of A-Z, a-z, 0-9, _, . and -
    => 2
    $ weir keys add x --role guest --expires soon
    ! weir: --expires "soon" is not a time: write it like 90d, 12h, 2027-06-30 or 2027-06-30T12:00:00Z
    => 2
    $ weir keys add x --role guest --expires 2020-01-01
    ! weir: --expires 2020-01-01: this moment has passed
    => 2
    $ weir keys add x --role guest --file elsewhere.toml
    ! weir: elsewhere.toml is not part of the configuration: create it, and add it to the `include` of weir.toml
    => 2
    $ weir keys rotate cj
    ! weir: no client `cj`; did you mean `ci`?
    => 2
    $ weir keys rotate nobody
    ! weir: no client `nobody`: `weir keys list` lists the clients
    => 2
    $ weir keys rotate ci --finish
    ! weir: client `ci` has one key: `weir keys rotate ci` gives it another first
    => 2
    $ weir keys revoke nobody --json
    ! {"error":"no client `nobody`: `weir keys list` lists the clients","exit_code":2}
    => 2
    $ weir keys list --config gone.toml
    ! error: cannot be read: No such file or directory (os error 2)
    --> gone.toml
     = help: check the path and its permissions
    => 78
    "#);
    assert_eq!(read(folder, "weir.toml"), CONFIG);
    assert_eq!(read(folder, "conf.d/machines.toml"), INCLUDED);
}

#[test]
fn what_cannot_be_changed_alone_is_not_changed() {
    let inline = format!(
        "clients = {{ ann = {{ key_sha256 = [\"{}\"], role = \"local\" }} }}\n[upstreams.house]\n\
         prompts_dir = \"prompts\"\n",
        "2".repeat(64)
    );
    let folder = folder(&inline);
    let folder = folder.path();
    assert_snapshot!(shown(folder, &["keys", "add", "bob", "--role", "local"]), @r"
    $ weir keys add bob --role local
    ! weir: weir.toml: client `bob` cannot be changed without touching other settings, so nothing was written; change it by hand: add [clients.bob] there; --dry-run prints its lines
    => 78
    ");
    assert_snapshot!(shown(folder, &["keys", "revoke", "ann"]), @r"
    $ weir keys revoke ann
    ! weir: weir.toml: client `ann` cannot be changed without touching other settings, so nothing was written; change it by hand: remove [clients.ann]
    => 78
    ");
    assert_eq!(read(folder, "weir.toml"), inline);
}

#[test]
fn the_last_and_the_first_client_change_who_may_come_in() {
    let folder = folder("[upstreams.house]\nprompts_dir = \"prompts\"\n");
    let folder = folder.path();
    let (_, err) = key_of(folder, &["keys", "add", "ann", "--role", "local"]);
    assert_snapshot!(err, @r"
    wrote the client `ann` into weir.toml
    next: give the key to the client, which sends it as `Authorization: Bearer <key>`; it is not shown again
          a running Weir applies the file within seconds
    note: this is the first client: from now on every client needs a key
    ");
    assert_snapshot!(shown(folder, &["keys", "revoke", "ann"]), @r#"
    $ weir keys revoke ann
    ! removed the client `ann` from weir.toml
    next: a running Weir applies the file within seconds; until then the client's keys are valid there
    note: no client is left, so every program on this machine can connect without a key; set mode = "required" under [auth] to require keys
    => 0
    "#);
}

#[test]
fn check_tells_of_keys_that_end_roles_that_nobody_has_and_patterns_that_match_nothing() {
    let config = "\
[upstreams.house]
prompts_dir = \"prompts\"
[roles.guest]
prompts.allow = [\"house/greeting\", \"house/greting\", \"*/secret-*\"]
prompts.deny = [\"house/nothing*\"]
tools.allow = [\"house/*\", \"*\"]
[roles.idle]
prompts.allow = [\"*\"]
[clients.late]
key_sha256 = [\"1111111111111111111111111111111111111111111111111111111111111111\"]
role = \"guest\"
expires = 2026-01-02T03:04:05Z
[clients.early]
key_sha256 = [\"2222222222222222222222222222222222222222222222222222222222222222\"]
role = \"guest\"
expires = 2199-01-02T03:04:05Z
";
    let folder = folder(config);
    assert_snapshot!(shown(folder.path(), &["check"]), @r"
    $ weir check
    ok    house  library  2 prompts
    ! warning: roles.idle: no client has this role
     --> weir.toml:7:8
      |
    7 | [roles.idle]
      |        ^^^^ `weir keys add NAME --role idle` makes a client that has it
    warning: clients.late.expires: the keys of this client have expired
      --> weir.toml:12:11
       |
    12 | expires = 2026-01-02T03:04:05Z
       |           ^^^^^^^^^^^^^^^^^^^^ `weir keys rotate late --expires 90d` gives it another, `weir keys revoke late` removes it
    warning: roles.guest.prompts.allow: house/greting matches none of the prompts that are listed
    warning: roles.guest.prompts.deny: house/nothing* matches none of the prompts that are listed
    => 0
    ");
    let (code, out, _) = weir(folder.path(), &["check", "--json"]);
    assert_eq!(code, 0);
    assert_snapshot!(out, @r#"{"upstreams":[{"name":"house","ok":true,"state":"library","prompts":2,"tools":0,"resources":0,"resourceTemplates":0,"problems":[],"altered":[]}],"warnings":[{"severity":"warning","file":"weir.toml","line":7,"column":8,"key":"roles.idle","what":"no client has this role","remedy":"`weir keys add NAME --role idle` makes a client that has it"},{"severity":"warning","file":"weir.toml","line":12,"column":11,"key":"clients.late.expires","what":"the keys of this client have expired","remedy":"`weir keys rotate late --expires 90d` gives it another, `weir keys revoke late` removes it"},{"severity":"warning","key":"roles.guest.prompts.allow","what":"house/greting matches none of the prompts that are listed","remedy":"correct the name, or remove the pattern"},{"severity":"warning","key":"roles.guest.prompts.deny","what":"house/nothing* matches none of the prompts that are listed","remedy":"correct the name, or remove the pattern"}]}"#);
}
