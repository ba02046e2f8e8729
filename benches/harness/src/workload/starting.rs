//! Startup workload: memory when idle and under load, and the time from the start to the first full
//! list.

use std::io;
use std::time::{Duration, Instant};

use super::Bench;
use super::requests::{self, RequestKind, fixture};
use crate::load::drive::{Length, drive};
use crate::load::peer::Era;
use crate::process;
use crate::subject::{self, Fixture, Setup, Subject};

pub(super) async fn run(bench: &mut Bench) -> io::Result<()> {
    if bench.wants("memory") {
        for subject in bench.of(&[Subject::Nginx, Subject::Weir, Subject::WeirPolicy]) {
            if let Err(error) = memory(bench, subject).await {
                bench.results.fail("memory", subject.name(), &error.to_string());
            }
        }
    }
    if bench.wants("start") && bench.subjects.contains(&Subject::Weir) {
        for turn in 0..bench.turns {
            bench.report_progress(&format!("start: turn {} of {}", turn + 1, bench.turns));
            match start(bench).await {
                Ok((time, idle)) => {
                    bench.results.note("start", "weir", "first_list_ms", time * 1e3);
                    bench.results.note("start", "weir", "idle_10_mib", idle);
                }
                Err(error) => bench.results.fail("start", "weir", &error.to_string()),
            }
        }
    }
    Ok(())
}

async fn memory(bench: &mut Bench, subject: Subject) -> io::Result<()> {
    bench.report_progress(&format!("memory: {subject}"));
    let folder = tempfile::tempdir_in(&bench.folder)?;
    let settings = fixture(1 << 10);
    let fixture = Fixture::start(&settings, folder.path())?;
    let setup = Setup::of(&fixture.addresses, Era::Modern);
    let mut running = subject::start(subject, &bench.programs, &setup, folder.path()).await?;
    running.lists("prompts/list", 100, Era::Modern).await?;
    let processes = running.processes();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let idle = process::memory_kib(&processes, "VmRSS") / 1024.0;
    bench.results.note("memory", subject.name(), "idle_mib", idle);
    let peers = requests::peers(&running, 256, Era::Modern).await?;
    let clients = requests::clients(&peers, RequestKind::Get, 256, &settings).await?;
    let driven =
        drive(&clients, Length::Time(bench.turn.max(Duration::from_secs(1))), || {}).await?;
    if let Some(wrong) = driven.first_wrong {
        return Err(io::Error::other(wrong));
    }
    let peak = process::memory_kib(&processes, "VmHWM") / 1024.0;
    bench.results.note("memory", subject.name(), "with_256_mib", peak);
    Ok(())
}

/// Seconds from the start of the program until a client has all prompts of ten servers, and the
/// memory in MiB when idle behind that.
async fn start(bench: &Bench) -> io::Result<(f64, f64)> {
    let folder = tempfile::tempdir_in(&bench.folder)?;
    let mut settings = fixture(64);
    settings.servers = 10;
    let fixture = Fixture::start(&settings, folder.path())?;
    let setup = Setup { page: 1_000, ..Setup::of(&fixture.addresses, Era::Modern) };
    let begin = Instant::now();
    let running = subject::start_weir(&bench.programs, &setup, folder.path())?;
    let peer = running.peer(0, Era::Modern);
    loop {
        if let Ok(pages) = peer.walk("prompts/list").await {
            let count: usize = pages.iter().map(|page| page.names.len()).sum();
            if count == 1_000 && pages.iter().all(|page| !page.is_partial) {
                let time = begin.elapsed().as_secs_f64();
                tokio::time::sleep(Duration::from_millis(500)).await;
                let idle = process::memory_kib(&running.processes(), "VmRSS") / 1024.0;
                return Ok((time, idle));
            }
        }
        if begin.elapsed() > Duration::from_secs(30) {
            return Err(io::Error::other("no full list within 30 s"));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
