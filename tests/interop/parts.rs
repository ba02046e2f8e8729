//! Programs that `./dev prepare` installs, and the servers among them that a test starts.
//!
//! `tests/interop/parts/README.md` describes them.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio_util::task::TaskTracker;

use crate::fleet::soon;
use crate::lab::ports::free_port;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Path of a program of this repository that needs a part.
pub(crate) fn script(path: &str) -> PathBuf {
    root().join("tests/interop/parts").join(path)
}

/// Path of a prepared part.
pub(crate) fn part(path: &str) -> PathBuf {
    let path = root().join(".cache/interop").join(path);
    assert!(path.exists(), "{} is missing: run `./dev prepare`", path.display());
    path
}

pub(crate) fn everything() -> PathBuf {
    part("npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js")
}

/// Server over HTTP that a test started.
pub(crate) struct Started {
    pub(crate) url: String,
    _child: Child,
}

/// `server-everything` over Streamable HTTP. It does not report a port that the system chose, so it
/// gets a free one.
pub(crate) async fn everything_over_http() -> Started {
    let port = free_port();
    let child = everything_on(port, "streamableHttp", "listening on port").await;
    Started { url: format!("http://127.0.0.1:{port}/mcp"), _child: child }
}

/// `server-everything` on this port, once it reports that it is ready.
pub(crate) async fn everything_on(port: u16, mode: &str, ready: &str) -> Child {
    let mut child = Command::new(part("bin/node"))
        .arg(everything())
        .arg(mode)
        .env("PORT", port.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    soon(async { while !lines.next_line().await.unwrap().unwrap().contains(ready) {} }).await;
    // It logs every message, so the pipe has to be drained until it ends.
    TaskTracker::new().spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    child
}

/// FastMCP over Streamable HTTP, in both eras.
pub(crate) async fn fastmcp() -> Started {
    let mut command = Command::new(part("mcp2/bin/python"));
    announced(command.arg(script("fastmcp_server.py"))).await
}

/// Server of the TypeScript SDK v2 over Streamable HTTP, in both eras.
pub(crate) async fn sdk2() -> Started {
    let mut command = Command::new(part("bin/node"));
    announced(command.arg(script("sdk2_server.mjs")).arg("http")).await
}

/// Server of the TypeScript SDK v2 with input requests, over Streamable HTTP and with sessions in
/// the legacy era.
pub(crate) async fn sdk2_input_requests() -> Started {
    let mut command = Command::new(part("bin/node"));
    announced(command.arg(script("sdk2_asking.mjs")).arg("http")).await
}

/// Server of the Python SDK in this part over Streamable HTTP.
pub(crate) async fn python(part_of: &str) -> Started {
    let mut command = Command::new(part(&format!("{part_of}/bin/python")));
    announced(command.arg(script("python_server.py")).arg("http")).await
}

/// Starts a server that writes its address to stdout.
pub(crate) async fn announced(command: &mut Command) -> Started {
    command.stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = soon(lines.next_line()).await.unwrap().unwrap();
    Started { url: line.strip_prefix("listening on ").unwrap().to_owned(), _child: child }
}

/// Address of a web page on this machine, since tests use no other host.
pub(crate) async fn page() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::task::spawn_local(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4096];
            let read = stream.read(&mut head).await.unwrap_or(0);
            let robots = head[..read].starts_with(b"GET /robots.txt");
            let (status, body) = if robots {
                ("404 Not Found", "")
            } else {
                ("200 OK", "<p>a weir holds water back</p>")
            };
            let reply = format!(
                "HTTP/1.1 {status}\r\ncontent-type: text/html\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(reply.as_bytes()).await;
        }
    });
    format!("http://{address}/")
}
