//! `./dev release` with stand-ins for the programs that it runs: a missing or failing program costs
//! that step only, and the result of the step before is delivered with a line that says so.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// Builds a file that records the flags.
const CARGO: &str = r#"#!/bin/sh
case $1 in --version) echo "cargo PINNED (x)"; exit ;; clippy | fmt) exit ;; esac
into=$CARGO_TARGET_DIR; target=; bin=
while [ $# -gt 0 ]; do
    case $1 in --target-dir) into=$2; shift ;; --target) target=$2; shift ;;
    --bin) bin=$2; shift ;; esac
    shift
done
case $RUSTFLAGS in -Cprofile-use*) [ ! -e "$CARGO_TARGET_DIR/no-guided" ] || exit 101 ;; esac
mkdir -p "$into/$target/release"
if [ "$bin" = weir-bench ]; then
    printf '#!/bin/sh\n[ ! -e "$CARGO_TARGET_DIR/no-load" ]\n' >"$into/$target/release/$bin"
else
    printf 'built %s\n' "$RUSTFLAGS" >"$into/$target/release/$bin"
fi
chmod +x "$into/$target/release/$bin"
"#;

const RUSTC: &str = r#"#!/bin/sh
case $1 in -vV) echo "host: x86_64-unknown-linux-gnu" ;; --print) echo "$CARGO_TARGET_DIR/sysroot" ;; esac
"#;

const RUSTUP: &str = "#!/bin/sh\n[ \"$1\" != component ]\n";

/// Merges counts or profiles.
const PROFDATA: &str = "#!/bin/sh\necho profile >\"$3\"\n";

/// Finds its runtime beside the path that it was called by. As LLVM 19 it does not know `safe`; as
/// a later one it does, and its help text after that is longer than a pipe's buffer.
const BOLT: &str = r#"#!/bin/sh
folding=
case $* in *icf=safe*) folding=' and folded' ;; esac
if [ -e "$CARGO_TARGET_DIR/newer-bolt" ]; then
    case $* in *--help*) echo "  --icf=<value>    - fold"; yes '  --another' | head -n 100000; exit ;; esac
else
    case $* in *--help*) echo "  --icf    - fold"; exit ;; *icf=*) echo "unknown icf" >&2; exit 1 ;; esac
fi
[ -e "$(dirname "$0")/../lib/libbolt_rt_instr.a" ] || { echo "library not found" >&2; exit 1; }
[ ! -e "$CARGO_TARGET_DIR/no-bolt" ] || exit 1
while [ "$1" != -o ]; do shift; done
echo "rearranged$folding" >"$2"
mkdir -p "$(dirname "$2")/profiles"; echo x >"$(dirname "$2")/profiles/weir.1"
chmod +x "$2"
"#;

struct Machine {
    target: TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Self { target: TempDir::new().expect("a folder") };
        let toolchain = include_str!("../../rust-toolchain.toml");
        let pinned = toolchain.split('"').nth(1).expect("a channel");
        machine.program("bin/cargo", &CARGO.replace("PINNED", pinned));
        machine.program("bin/rustc", RUSTC);
        machine.program("bin/rustup", RUSTUP);
        machine.program("sysroot/lib/rustlib/x86_64-unknown-linux-gnu/bin/llvm-profdata", PROFDATA);
        machine.program("llvm/bin/llvm-bolt", BOLT);
        machine.program("llvm/bin/merge-fdata", "#!/bin/sh\ncat \"$@\"\n");
        machine.program("llvm/lib/libbolt_rt_instr.a", "");
        symlink(machine.path().join("llvm/bin/llvm-bolt"), machine.path().join("bin/llvm-bolt-99"))
            .expect("linked");
        machine
    }

    fn path(&self) -> &Path {
        self.target.path()
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("set");
    }

    /// Returns the delivered file and the output.
    fn release(&self) -> (String, String) {
        let path = std::env::var("PATH").expect("a path");
        let output = Command::new("bash")
            .args(["dev", "release"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("CARGO_TARGET_DIR", self.path())
            .env("PATH", format!("{}:{path}", self.path().join("bin").display()))
            .output()
            .expect("it runs");
        let received = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.success(), "{received}");
        let delivered = std::fs::read_to_string(self.path().join("guided/weir"));
        (delivered.expect("it is delivered").trim().to_owned(), received)
    }
}

#[test]
fn a_release_is_rearranged_by_the_program_that_a_link_leads_to() {
    let machine = Machine::new();
    let (delivered, received) = machine.release();
    assert_eq!(delivered, "rearranged", "{received}");
    assert!(!received.contains("slower"), "{received}");
}

#[test]
fn a_release_is_folded_by_a_program_that_knows_how_to_do_that_safely() {
    let machine = Machine::new();
    machine.program("newer-bolt", "");
    let (delivered, received) = machine.release();
    assert_eq!(delivered, "rearranged and folded", "{received}");
}

#[test]
fn a_release_that_a_profile_cannot_guide_is_delivered_plain() {
    let machine = Machine::new();
    machine.program("no-guided", "");
    let (delivered, received) = machine.release();
    assert_eq!(delivered, "built", "{received}");
    let lines: Vec<_> = received.lines().filter(|line| line.contains("slower")).collect();
    let reason = "without a profile, a third slower: the profile-guided build failed";
    assert!(matches!(lines[..], [line] if line.contains(reason)), "{received}");
}

#[test]
fn a_release_that_cannot_be_rearranged_is_delivered_as_it_was_built() {
    let machine = Machine::new();
    machine.program("no-bolt", "");
    let (delivered, received) = machine.release();
    assert!(delivered.starts_with("built -Cprofile-use="), "{delivered}");
    let lines: Vec<_> =
        received.lines().filter(|line| line.contains("not optimized with llvm-bolt")).collect();
    assert!(matches!(lines[..], [line] if line.contains("llvm-bolt failed, see")), "{received}");
}

#[test]
fn a_release_without_a_profile_is_delivered_plain() {
    for missing in ["no-load", "llvm-profdata"] {
        let machine = Machine::new();
        let tool = "sysroot/lib/rustlib/x86_64-unknown-linux-gnu/bin/llvm-profdata";
        match missing {
            "no-load" => machine.program("no-load", ""),
            _ => std::fs::remove_file(machine.path().join(tool)).expect("removed"),
        }
        let (delivered, received) = machine.release();
        assert_eq!(delivered, "built", "{received}");
        let lines: Vec<_> =
            received.lines().filter(|line| line.contains("without a profile")).collect();
        let reason =
            if missing == "no-load" { "the load failed" } else { "llvm-profdata is missing" };
        assert!(matches!(lines[..], [line] if line.contains(reason)), "{received}");
    }
}
