//! Whether a request costs more where there is more that it has nothing to do with: servers, items, roles.

use std::io;

use super::requests::{self, Ask, fixture};
use super::{Bench, Entry};
use crate::load::peer::Era;
use crate::subject::{self, Fixture, Policy, Setup, Subject};

/// How much there is of each.
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
    let (mut held, mut entries) = (Vec::new(), Vec::new());
    for size in SIZES {
        bench.say(&format!("growth: starting with {}", size.label));
        match open(bench, &size).await {
            Ok((entry, kept)) => {
                entries.push(entry);
                held.push(kept);
            }
            Err(error) => bench.results.fail("growth", size.label, &error.to_string()),
        }
    }
    bench.take_turns("growth", &entries).await
}

/// Starts a Weir of this size; what is returned beside it has to be held for as long as it is asked.
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
    running.lists(size.servers * size.prompts, Era::Modern).await?;
    let peers = requests::peers(&running, 32, Era::Modern).await?;
    let clients = requests::clients(&peers, Ask::Get, 32, 1 << 10).await?;
    let entry = Entry { label: size.label.to_owned(), clients, processes: running.processes() };
    Ok((entry, (running, fixture, folder)))
}
