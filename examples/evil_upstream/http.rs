//! Streamable HTTP and HTTP+SSE over plain sockets, because some faults are below HTTP.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::Duration;

use crate::methods::{Action, Listener, Response, Server};
use crate::output::{self, MessageSink};
use crate::script::{Fault, Script};
use crate::stdio::acknowledged;

/// Accepts connections. Never returns.
pub(crate) fn serve(server: &Arc<Server>, listener: &TcpListener) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        let server = Arc::clone(server);
        spawn(move || connection(&server, stream));
    }
}

struct Request {
    method: String,
    path: String,
    /// Header fields; the names are in lower case.
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// Serves one connection until either side ends it.
fn connection(server: &Arc<Server>, stream: TcpStream) {
    if Script::read(&server.folder).down {
        output::close(&stream, true);
        return;
    }
    server.record("heard", "connect");
    let _ = stream.set_nodelay(true);
    let Ok(reading) = stream.try_clone() else { return };
    let mut reading = BufReader::new(reading);
    let mut stream = stream;
    while let Ok(Some(request)) = read(&mut reading) {
        let script = Script::read(&server.folder);
        let result = match (request.method.as_str(), script.pair) {
            ("GET", true) => http_sse_stream(server, &mut stream),
            ("POST", true) => http_sse_message(server, &script, &mut stream, &request),
            ("GET", false) if !script.is_modern() => get_stream(server, &mut stream, &request),
            ("POST", false) => message(server, &script, &mut stream, &request),
            ("DELETE", false) => {
                let session = request.headers.get("mcp-session-id").cloned().unwrap_or_default();
                server.sessions.lock().expect("no thread panics").remove(&session);
                server.record("heard", "DELETE");
                write(&mut stream, "200 OK", "", b"", &Fault::default())
            }
            _ => write(&mut stream, "405 Method Not Allowed", "", b"", &Fault::default()),
        };
        if result.is_err() {
            break;
        }
    }
}

fn read(from: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        from.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok());
    let mut body = vec![0; length.unwrap_or_default()];
    from.read_exact(&mut body)?;
    Ok(Some(Request { method, path, headers, body }))
}

// === Streamable HTTP ===

fn message(
    server: &Arc<Server>,
    script: &Script,
    stream: &mut TcpStream,
    request: &Request,
) -> io::Result<()> {
    let Ok(message) = serde_json::from_slice::<serde_json::Value>(&request.body) else {
        return write(stream, "400 Bad Request", "", b"", &Fault::default());
    };
    let mut headers = String::new();
    if !script.is_modern() {
        let session = request.headers.get("mcp-session-id");
        let known = |session| server.sessions.lock().expect("no thread panics").contains(session);
        if session.is_some_and(|session: &String| !known(session)) {
            return write(stream, "404 Not Found", "", b"", &Fault::default());
        }
        if message["method"] == "initialize" {
            headers = format!("Mcp-Session-Id: {}\r\n", server.new_session());
        }
    }
    match server.handle(script, &message) {
        Action::Ignore => write(stream, "202 Accepted", "", b"", &Fault::default()),
        Action::OpenStream(id, wanted) => {
            let begun = acknowledged(&id, &wanted);
            keep_stream_open(server, stream, &begun, id, true)
        }
        Action::Respond(response) => reply(server, stream, &response, &headers),
    }
}

fn reply(
    server: &Server,
    stream: &mut TcpStream,
    response: &Response,
    headers: &str,
) -> io::Result<()> {
    let fault = &response.fault;
    sleep(Duration::from_millis(fault.delay_ms));
    server.wait_for_file(fault.waits_for.as_deref());
    if let Some(code) = fault.exit {
        output::exit(code);
    }
    if fault.never {
        output::wait_for_close(stream);
        server.record("heard", format_args!("hang-up {}", response.method));
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    let mut headers = headers.to_owned();
    for (name, value) in &fault.headers {
        headers += &format!("{name}: {value}\r\n");
    }
    let mut text = response.text.clone().into_bytes();
    if let Some(hex) = &fault.hex {
        text = output::decode_hex(hex);
    }
    if let Some(code) = fault.status {
        let content = fault.content_type.as_deref().unwrap_or("application/json");
        headers += &format!("Content-Type: {content}\r\n");
        let body = if fault.text.is_some() { text } else { Vec::new() };
        return write(stream, &format!("{code} Status"), &headers, &body, fault);
    }
    if let Some(text) = &fault.flood {
        // Informational responses are sent instead of the response.
        let many = if text.starts_with("HTTP/1.1 1") {
            output::repeated(text)
        } else {
            headers += "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            stream.write_all(format!("HTTP/1.1 200 OK\r\n{headers}").as_bytes())?;
            chunk(&output::repeated(text))
        };
        let ended = output::flood(stream, &many);
        server.record("heard", format_args!("hang-up {}", response.method));
        return ended;
    }
    let has_more = !response.before.is_empty() || fault.comments_ms.is_some();
    let notices = response.after.iter().map(|text| output::event(text.as_bytes()));
    let events = fault.events || has_more || !response.after.is_empty();
    let mut raw = Vec::new();
    if events {
        headers += "Content-Type: text/event-stream\r\n";
        raw.extend(response.before.iter().flat_map(|text| chunk(&output::event(text.as_bytes()))));
        if fault.comments_ms.is_none() && !fault.asks {
            raw.extend(chunk(&output::event(&text)));
        }
        raw.extend(notices.flat_map(|event| chunk(&event)));
    } else {
        headers += &format!(
            "Content-Type: {}\r\n",
            fault.content_type.as_deref().unwrap_or("application/json")
        );
        // In two chunks, so that tests can cut the response between them.
        let (one, other) = text.split_at(text.len() / 2);
        raw.extend([one, other].into_iter().flat_map(chunk));
    }
    if !(events || fault.chunked) {
        write(stream, "200 OK", &headers, &text, fault)?;
    } else {
        let head = format!("HTTP/1.1 200 OK\r\n{headers}Transfer-Encoding: chunked\r\n\r\n");
        let mut whole = [head.as_bytes(), &raw].concat();
        if fault.asks {
            stream.write_all(&whole)?;
            if !server.wait_for_answer(&response.nonce) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            whole = chunk(&output::event(&text));
        }
        match fault.comments_ms {
            Some(pause) => {
                output::write_or_cut(stream, &whole, fault)?;
                let alive = chunk(b": still here\n\n");
                while output::write_or_cut(stream, &alive, &Fault::default()).is_ok() {
                    sleep(Duration::from_millis(pause));
                }
                server.record("heard", format_args!("hang-up {}", response.method));
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            None => {
                whole.extend_from_slice(b"0\r\n\r\n");
                output::write_or_cut(stream, &whole, fault)?;
            }
        }
    }
    if let Some(code) = fault.exit_after {
        output::exit(code);
    }
    Ok(())
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

fn write(
    stream: &mut TcpStream,
    status: &str,
    headers: &str,
    body: &[u8],
    fault: &Fault,
) -> io::Result<()> {
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    output::write_or_cut(stream, &[head.as_bytes(), body].concat(), fault)
}

fn get_stream(server: &Arc<Server>, stream: &mut TcpStream, request: &Request) -> io::Result<()> {
    let session = request.headers.get("mcp-session-id").cloned().unwrap_or_default();
    keep_stream_open(server, stream, "", session, false)
}

/// Keeps an event stream open for notifications until the client closes it.
fn keep_stream_open(
    server: &Arc<Server>,
    stream: &mut TcpStream,
    begun: &str,
    owner: String,
    is_listen: bool,
) -> io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
    let first = if begun.is_empty() { Vec::new() } else { output::event(begun.as_bytes()) };
    let opening = [head.as_bytes(), &first].concat();
    output::write_or_cut(stream, &opening, &Fault::default())?;
    server.record("heard", "stream");
    let sink = MessageSink::Events(Arc::new(Mutex::new(stream.try_clone()?)));
    let listener = Listener { sink, owner: owner.clone(), is_listen };
    server.listeners.lock().expect("no thread panics").push(listener);
    output::wait_for_close(stream);
    server.listeners.lock().expect("no thread panics").retain(|other| other.owner != owner);
    server.record("heard", "stream ended");
    Err(io::ErrorKind::ConnectionAborted.into())
}

// === HTTP+SSE ===

fn http_sse_stream(server: &Arc<Server>, stream: &mut TcpStream) -> io::Result<()> {
    let session = server.new_session();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
    let endpoint = format!("event: endpoint\ndata: /messages?session={session}\n\n");
    // Registered before the endpoint event, because the client may send a message immediately.
    let sink = MessageSink::Events(Arc::new(Mutex::new(stream.try_clone()?)));
    let listener = Listener { sink, owner: session.clone(), is_listen: false };
    server.listeners.lock().expect("no thread panics").push(listener);
    output::write_or_cut(stream, &[head, &endpoint].concat().into_bytes(), &Fault::default())?;
    output::wait_for_close(stream);
    server.listeners.lock().expect("no thread panics").retain(|other| other.owner != session);
    server.record("heard", "stream ended");
    Err(io::ErrorKind::ConnectionAborted.into())
}

fn http_sse_message(
    server: &Arc<Server>,
    script: &Script,
    stream: &mut TcpStream,
    request: &Request,
) -> io::Result<()> {
    let session = request.path.split_once("session=").map(|(_, session)| session);
    let sink = session.and_then(|session| {
        let listeners = server.listeners.lock().expect("no thread panics");
        let own = listeners.iter().find(|listener| listener.owner == session);
        own.map(|listener| listener.sink.clone())
    });
    let message = serde_json::from_slice::<serde_json::Value>(&request.body);
    let (Some(sink), Ok(message)) = (sink, message) else {
        // Without an HTTP+SSE session, this status makes a client try HTTP+SSE.
        return write(stream, "405 Method Not Allowed", "", b"", &Fault::default());
    };
    let action = server.handle(script, &message);
    write(stream, "202 Accepted", "", b"", &Fault::default())?;
    if let Action::Respond(response) = action {
        let server = Arc::clone(server);
        spawn(move || {
            let fault = &response.fault;
            sleep(Duration::from_millis(fault.delay_ms));
            server.wait_for_file(fault.waits_for.as_deref());
            if let Some(code) = fault.exit {
                output::exit(code);
            }
            if !fault.never {
                let _ = sink.send_response(&response);
            }
        });
    }
    Ok(())
}
