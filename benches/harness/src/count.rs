//! `weir-bench count`: instructions and allocations of one call through real sockets, as callgrind
//! counts them.
//!
//! For each kind of call, Weir runs twice under callgrind between the load and the fixture, with
//! different numbers of calls. The difference of the two totals, divided by the difference of the
//! numbers, is the cost of one call: start, stop and the first call of each connection cancel out.

mod figures;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::tempdir;

use crate::fixture::Settings;
use crate::load::drive::{Length, drive};
use crate::load::peer::Era;
use crate::subject::{self, Credentials, Fixture, Policy, Programs, Setup, Store, start_replicas};
use crate::workload::requests::{self, RequestKind, fixture};

/// Arguments of `count`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only calls whose names begin with this
    #[arg(long, default_value = "")]
    only: String,
    /// The program of Weir to count
    #[arg(long)]
    weir: PathBuf,
    /// The valgrind to count with
    #[arg(long, default_value = "valgrind")]
    valgrind: PathBuf,
    /// The folder of the parts, which has the store of a fleet
    #[arg(long)]
    parts: PathBuf,
    /// Keeps callgrind's output of the longer run of each call in this folder
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Compares all with the figures of this file, and fails if one differs by more than 3 %
    #[arg(long)]
    compare: Option<PathBuf>,
    /// Leaves out the calls whose figures depend on the load of the machine
    #[arg(long)]
    by_day: bool,
    /// Writes the figures into the file instead
    #[arg(long, requires = "compare")]
    write: bool,
}

/// A counted call.
struct Counted {
    name: &'static str,
    kind: RequestKind,
    era: Era,
    policy: Policy,
    guard: bool,
    credentials: Credentials,
    /// Replicas of the fleet, 0 without one. With two, the clients' sessions are on the first one,
    /// and they call the second one.
    replicas: usize,
    /// Number of counts, of which the smallest is taken. More than one for a call whose
    /// instructions depend on how its bytes arrive in reads and on which tasks are awake: by 6 % on
    /// an idle machine, and by far more on a busy one, where more heartbeats fall into each run.
    counts: usize,
}

const fn counted(name: &'static str, kind: RequestKind, era: Era) -> Counted {
    let (policy, credentials) = (Policy::None, Credentials::None);
    Counted { name, kind, era, policy, guard: true, credentials, replicas: 0, counts: 1 }
}

const COUNTED: [Counted; 11] = [
    counted("get_modern", RequestKind::Get, Era::Modern),
    Counted { guard: false, ..counted("get_modern_unguarded", RequestKind::Get, Era::Modern) },
    Counted {
        policy: Policy::Full { roles: 8 },
        ..counted("get_modern_policy", RequestKind::Get, Era::Modern)
    },
    counted("call_modern", RequestKind::Call, Era::Modern),
    Counted {
        credentials: Credentials::Bearer,
        ..counted("call_modern_bearer", RequestKind::Call, Era::Modern)
    },
    Counted {
        credentials: Credentials::OAuth,
        ..counted("call_modern_oauth", RequestKind::Call, Era::Modern)
    },
    Counted { replicas: 1, ..counted("call_modern_fleet", RequestKind::Call, Era::Modern) },
    counted("get_legacy", RequestKind::Get, Era::Legacy),
    counted("call_legacy", RequestKind::Call, Era::Legacy),
    Counted {
        replicas: 2,
        counts: 3,
        ..counted("call_legacy_hop", RequestKind::Call, Era::Legacy)
    },
    counted("list_modern", RequestKind::Walk, Era::Modern),
];

/// Most counts of a call whose count differs from the committed one: beside other work, the tasks
/// that are awake at a time are others.
const MAX_COUNTS: usize = 3;

/// Number of connections.
const CONNECTIONS: usize = 8;
/// Calls of each connection in the shorter and in the longer run.
const CALLS: [usize; 2] = [25, 150];

/// Prints two lines for each kind of call: its name and its instructions, its name with
/// `_allocations` and the number of its allocations. With `--compare` it prints each figure of the
/// file beside the committed one.
pub(crate) async fn run(arguments: &Arguments) -> io::Result<()> {
    let committed = arguments.compare.as_deref().map(fs::read_to_string).transpose()?;
    let committed = committed.unwrap_or_default();
    let mut figures = Vec::new();
    let by_day = |counted: &&Counted| !arguments.by_day || counted.counts == 1;
    let named = COUNTED.iter().filter(|counted| counted.name.starts_with(&arguments.only));
    for counted in named.filter(by_day) {
        let mut least: Option<Total> = None;
        for number in 1..=MAX_COUNTS {
            let cost = cost(counted, arguments).await?;
            let smaller = |least: Total| Total {
                instructions: least.instructions.min(cost.instructions),
                allocations: least.allocations.min(cost.allocations),
            };
            let present = least.map_or(cost, smaller);
            least = Some(present);
            let is_as_committed =
                figures::is_as_committed(&committed, counted.name, present.instructions);
            if number >= counted.counts && is_as_committed != Some(false) {
                break;
            }
        }
        let cost = least.unwrap_or_default();
        figures.push((counted.name.to_owned(), cost.instructions));
        figures.push((format!("{}_allocations", counted.name), cost.allocations));
    }
    match &arguments.compare {
        Some(file) => figures::compare(file, &figures, arguments),
        None => {
            figures.iter().for_each(|(name, figure)| println!("{name} {figure}"));
            Ok(())
        }
    }
}

/// Returns whether a row of the figures is one of a call.
fn is_call(row: &str) -> bool {
    COUNTED.iter().any(|counted| counted.name == row.trim_end_matches("_allocations"))
}

/// Cost of one call: the difference of a longer and a shorter run, divided by their calls.
async fn cost(counted: &Counted, arguments: &Arguments) -> io::Result<Total> {
    let shorter = total(counted, CALLS[0], arguments).await?;
    let longer = total(counted, CALLS[1], arguments).await?;
    let calls = ((CALLS[1] - CALLS[0]) * CONNECTIONS) as u64;
    Ok(Total {
        instructions: longer.instructions.saturating_sub(shorter.instructions) / calls,
        allocations: longer.allocations.saturating_sub(shorter.allocations) / calls,
    })
}

/// Instructions and allocations of a whole run, or of one call.
#[derive(Clone, Copy, Default)]
struct Total {
    instructions: u64,
    allocations: u64,
}

/// Runs Weir under callgrind for this number of calls on each connection.
async fn total(counted: &Counted, calls: usize, arguments: &Arguments) -> io::Result<Total> {
    let folder = tempdir()?;
    let outputs = folder.path().join("callgrind");
    fs::create_dir(&outputs)?;
    let weir = under_callgrind(arguments, &outputs, folder.path())?;
    let parts = arguments.parts.clone();
    let programs = Programs { weir, parts, gateways: PathBuf::new() };
    let settings = Settings { escapes: true, ..fixture(1 << 10) };
    let servers = Fixture::start(&settings, folder.path())?;
    let mut setup = Setup::of(&servers.addresses, counted.era);
    (setup.policy, setup.guard) = (counted.policy, counted.guard);
    setup.credentials = counted.credentials;
    let store = match counted.replicas {
        0 => None,
        _ => Some(Store::start(&programs, folder.path())?),
    };
    let mut running = match &store {
        None => vec![subject::start_weir(&programs, &setup, &folder.path().join("weir"))?],
        Some(store) => {
            let (count, tools) = (counted.replicas, settings.tools);
            start_replicas(count, &programs, &setup, tools, store, folder.path()).await?
        }
    };
    for weir in &mut running {
        weir.lists("prompts/list", settings.prompts, counted.era).await?;
        weir.lists("tools/list", settings.tools, counted.era).await?;
    }
    let (first, last) = (&running[0], &running[running.len() - 1]);
    let peers = requests::peers_at(first, last, CONNECTIONS, counted.era).await?;
    let clients = requests::clients(&peers, counted.kind, CONNECTIONS, &settings).await?;
    let driven = drive(&clients, Length::Count(calls), || ()).await?;
    if let Some(wrong) = driven.first_wrong {
        return Err(io::Error::other(format!("{}: {wrong}", counted.name)));
    }
    // Its end writes the output.
    drop(running);
    let mut all = Total::default();
    for output in fs::read_dir(&outputs)? {
        let output = output?.path();
        if let (Some(keep), Some(process)) = (&arguments.keep, output.extension()) {
            let process = process.display();
            fs::copy(&output, keep.join(format!("{}.{process}", counted.name)))?;
        }
        let one = read(&output)?;
        all.instructions += one.instructions;
        all.allocations += one.allocations;
    }
    Ok(all)
}

/// Writes a program that runs Weir under callgrind, and returns its path.
fn under_callgrind(arguments: &Arguments, outputs: &Path, folder: &Path) -> io::Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let weir = fs::canonicalize(&arguments.weir)?;
    let script = format!(
        "#!/bin/sh\nexec '{}' --tool=callgrind --callgrind-out-file='{}/out.%p' '{}' \"$@\"\n",
        arguments.valgrind.display(),
        outputs.display(),
        weir.display()
    );
    let path = folder.join("counted-weir");
    fs::write(&path, script)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// Reads the total and the calls of the allocator's functions from callgrind's output.
///
/// A function is written once as `cfn=(ID) NAME` or `fn=(ID) NAME`, and as `(ID)` from then on; the
/// line after `cfn=` has the number of calls.
fn read(output: &Path) -> io::Result<Total> {
    let text = fs::read_to_string(output)?;
    let mut total = Total::default();
    let mut allocators = std::collections::BTreeSet::new();
    let mut counts = false;
    for line in text.lines() {
        if let Some(function) = line.strip_prefix("cfn=").or_else(|| line.strip_prefix("fn=")) {
            let (id, name) = function.split_once(' ').unwrap_or((function, ""));
            if ALLOCATORS.contains(&name.split('\'').next().unwrap_or(name)) {
                allocators.insert(id.to_owned());
            }
            counts = line.starts_with('c') && allocators.contains(id);
        } else if let Some(calls) = line.strip_prefix("calls=") {
            let calls = calls.split(' ').next().and_then(|calls| calls.parse::<u64>().ok());
            if counts {
                total.allocations += calls.unwrap_or(0);
            }
        } else if let Some(sum) = line.strip_prefix("totals: ") {
            total.instructions = sum.trim().parse().map_err(io::Error::other)?;
        }
    }
    match total.instructions {
        0 => Err(io::Error::other("callgrind wrote no total")),
        _ => Ok(total),
    }
}

/// Functions of mimalloc that Rust's allocations call.
const ALLOCATORS: [&str; 6] = [
    "mi_malloc",
    "mi_zalloc",
    "mi_realloc",
    "mi_malloc_aligned",
    "mi_zalloc_aligned",
    "mi_realloc_aligned",
];
