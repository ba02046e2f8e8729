//! Helpers that build HTTP requests as bytes.

use super::*;

pub(super) const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
pub(super) const OPEN: &str = r#"{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"VERSION","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;

/// A POST with these headers in addition to the usual ones.
pub(super) fn post(headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    )
}

/// A request of the legacy era.
pub(super) fn legacy(session: &str, method: &str, params: &str) -> String {
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
    post(&format!("Mcp-Session-Id: {session}\r\n"), &body)
}

/// A request of the modern era; `params` are its members besides `_meta`.
pub(super) fn modern(method: &str, params: &str) -> String {
    let comma = if params.is_empty() { "" } else { "," };
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{params}{comma}{META}}}}}"#
    );
    let parsed: Value = serde_json::from_str(&body).expect("JSON");
    let name = parsed["params"]["name"].as_str().or(parsed["params"]["uri"].as_str());
    let name = name.map(|name| format!("Mcp-Name: {name}\r\n")).unwrap_or_default();
    post(&format!("MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\n{name}"), &body)
}

pub(super) async fn open(client: &mut TestClient, version: &str) -> String {
    let response = client.ask(post("", &OPEN.replace("VERSION", version))).await;
    assert_eq!(response.status, 200, "{response:?}");
    session_of(&response).to_owned()
}

pub(super) fn session_of(response: &TestResponse) -> &str {
    response.header("mcp-session-id").expect("a session")
}

pub(super) fn text_of(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().expect("a text")
}

/// A request whose body was changed.
pub(super) fn with_length(request: &str) -> String {
    let (head, body) = request.split_once("\r\n\r\n").expect("a head");
    let lines: Vec<String> = head
        .split("\r\n")
        .map(|line| match line.split_once(": ") {
            Some(("Content-Length", _)) => format!("Content-Length: {}", body.len()),
            _ => line.to_owned(),
        })
        .collect();
    format!("{}\r\n\r\n{body}", lines.join("\r\n"))
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_fails_has_a_line_in_the_audit_log() {
    use crate::http::connection::tls::{Tls, TlsFiles, TlsKey};
    use crate::http::serve_tls;
    use weir_record::audit::{self, Audit};

    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let names = vec!["weir.test".to_owned()];
    let signed = rcgen::generate_simple_self_signed(names).expect("a certificate");
    std::fs::write(at("cert"), signed.cert.pem()).expect("written");
    std::fs::write(at("key"), signed.signing_key.serialize_pem()).expect("written");
    let (certificate, key) = (at("cert"), TlsKey::File(at("key")));
    let files = TlsFiles { certificate, key, client_ca: None, client_required: false };
    let tls = Tls::open(files).expect("good");
    let (audit, writer) = Audit::open(&audit::Settings {
        target: audit::AuditTarget::File(at("log")),
        arguments: audit::Arguments::None,
        chain: true,
        rotate_size: 1 << 20,
        rotate_keep: 1,
        on_error: audit::OnError::Continue,
    })
    .expect("a log");
    let world = TestGateway::recorded(Settings::default(), audit).await;
    let (ours, mut theirs) = duplex(1024);
    theirs.write_all(b"GET /mcp HTTP/1.1\r\n\r\n").await.expect("there is room");
    let peer = ([192, 0, 2, 7], 50_000).into();
    serve_tls(Arc::clone(&world.state_cell), &tls, ours, peer).await;
    let stop = CancellationToken::new();
    stop.cancel();
    writer.run(stop).await;
    let log = std::fs::read_to_string(at("log")).expect("a log");
    let line: Value = serde_json::from_str(log.lines().nth(1).expect("a line")).expect("JSON");
    let logged = ["event", "from", "wire", "rule", "outcome"].map(|it| line[it].as_str());
    assert_eq!(logged, ["request", "192.0.2.7", "http", "tls", "refused"].map(Some));
    assert!(line.get("method").is_none() && line.get("http").is_none(), "{line}");
}
