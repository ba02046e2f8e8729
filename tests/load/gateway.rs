//! Weir in front of the server of a load test.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::lab::weir::Weir;

/// A running `weir serve`, and the folder of its configuration.
pub(crate) struct Gateway {
    weir: Weir,
    pub(crate) folder: TempDir,
}

impl Gateway {
    /// Starts Weir in front of this server.
    pub(crate) async fn start(upstream: SocketAddr, server: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.stdin(Stdio::null());
        Self::start_by(command, upstream, server).await
    }

    /// Starts Weir by another command in front of this server.
    pub(crate) async fn start_by(command: Command, upstream: SocketAddr, server: &str) -> Self {
        let folder = TempDir::new().expect("a folder");
        let config = format!(
            "[log]\nformat = \"json\"\n[auth]\nmode = \"anonymous\"\n[upstreams.hub]\nera = \"modern\"\n\
             url = \"http://{upstream}/mcp\"\nlimits.concurrency = 1024\n[server]\nlisten = \"127.0.0.1:0\"\n{server}\n"
        );
        std::fs::write(folder.path().join("weir.toml"), config).expect("written");
        let weir = serve(command, folder.path()).await;
        Self { weir, folder }
    }

    /// Ends the process with a signal, and starts another on the same configuration, with an
    /// address of its own.
    pub(crate) async fn restart(&mut self, signal: Signal) {
        self.weir.signal(signal);
        self.weir.ended().await;
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.stdin(Stdio::null());
        self.weir = serve(command, self.folder.path()).await;
    }
}

async fn serve(mut command: Command, folder: &Path) -> Weir {
    command.arg("serve").current_dir(folder);
    Weir::start_by(command).await
}

impl Deref for Gateway {
    type Target = Weir;

    fn deref(&self) -> &Weir {
        &self.weir
    }
}

impl DerefMut for Gateway {
    fn deref_mut(&mut self) -> &mut Weir {
        &mut self.weir
    }
}
