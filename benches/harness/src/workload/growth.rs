//! Growth workload: whether a request costs more with more unrelated servers, items and roles.

use std::io;

use super::requests::{self, RequestKind, fixture};
use super::{Bench, Entry};
use crate::load::peer::Era;
use crate::subject::{self, Fixture, Policy, Setup, Subject};

/// Number of servers, items and roles.
struct Size {
    label: &'static str,
    servers: usize,
    prompts: usize,
    roles: Option<usize>,
}

const SIZES: [Size; 5] = [
    Size { label: "1 server, 100 items", servers: 1, prompts: 100, roles: None },
    Size { label: "100 servers, 100 items", servers: 100, prompts: 1, roles: None },
    Size { label: "100 servers, 100 000 items", servers: 100, prompts: 1_000, roles: None },
    Size { label: "1 server, 1 role", servers: 1, prompts: 100, roles: Some(1) },
    Size { label: "1 server, 1 000 roles", servers: 1, prompts: 100, roles: Some(1_000) },
];

pub(super) async fn run(bench: &mut Bench) -> io::Result<()> {
    if !bench.wants("growth") || !bench.subjects.contains(&Subject::Weir) {
        return Ok(());
    }
    let (mut guards, mut entries) = (Vec::new(), Vec::new());
    for size in SIZES {
        bench.report_progress(&format!("growth: starting with {}", size.label));
        match open(bench, &size).await {
            Ok((entry, guard)) => {
                entries.push(entry);
                guards.push(guard);
            }
            Err(error) => bench.results.fail("growth", size.label, &error.to_string()),
        }
    }
    bench.take_turns("growth", &entries).await
}

/// Starts a Weir of this size; the second value has to live for as long as requests are sent.
async fn open(bench: &Bench, size: &Size) -> io::Result<(Entry, impl Sized + use<>)> {
    let folder = tempfile::tempdir_in(&bench.folder)?;
    let mut settings = fixture(1 << 10);
    (settings.servers, settings.prompts, settings.tools) = (size.servers, size.prompts, 0);
    let fixture = Fixture::start(&settings, folder.path())?;
    let mut setup = Setup { page: 1_000, ..Setup::of(&fixture.addresses, Era::Modern) };
    if let Some(roles) = size.roles {
        setup.policy = Policy::Full { roles };
    }
    let mut running = subject::start_weir(&bench.programs, &setup, folder.path())?;
    running.lists("prompts/list", size.servers * size.prompts, Era::Modern).await?;
    let peers = requests::peers(&running, 32, Era::Modern).await?;
    let clients = requests::clients(&peers, RequestKind::Get, 32, &settings).await?;
    let entry = Entry { label: size.label.to_owned(), clients, processes: running.processes() };
    Ok((entry, (running, fixture, folder)))
}
