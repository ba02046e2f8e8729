//! Streamable HTTP and the HTTP+SSE pair, written by hand, since what is to go wrong lies below HTTP.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::Duration;

use crate::methods::{Answer, Deed, Listener, Server};
use crate::script::{Fault, Script};
use crate::stdio::acknowledged;
use crate::wire::{self, Outlet};

/// Serves for ever.
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
    /// Their names in lower case.
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// Serves one connection until either side ends it.
fn connection(server: &Arc<Server>, stream: TcpStream) {
    if Script::read(&server.folder).down {
        wire::hang_up(&stream, true);
        return;
    }
    server.note("heard", "connect");
    let _ = stream.set_nodelay(true);
    let Ok(reading) = stream.try_clone() else { return };
    let mut reading = BufReader::new(reading);
    let mut stream = stream;
    while let Ok(Some(request)) = read(&mut reading) {
        let script = Script::read(&server.folder);
        let goes_on = match (request.method.as_str(), script.pair) {
            ("GET", true) => pair_stream(server, &mut stream),
            ("POST", true) => pair_message(server, &script, &mut stream, &request),
            ("GET", false) if !script.is_modern() => get_stream(server, &mut stream, &request),
            ("POST", false) => message(server, &script, &mut stream, &request),
            ("DELETE", false) => {
                let session = request.headers.get("mcp-session-id").cloned().unwrap_or_default();
                server.sessions.lock().expect("no thread panics").remove(&session);
                server.note("heard", "DELETE");
                write(&mut stream, "200 OK", "", b"", &Fault::default())
            }
            _ => write(&mut stream, "405 Method Not Allowed", "", b"", &Fault::default()),
        };
        if goes_on.is_err() {
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
    match server.hear(script, &message) {
        Deed::Silence => write(stream, "202 Accepted", "", b"", &Fault::default()),
        Deed::Listen(id, wanted) => {
            let begun = acknowledged(&id, &wanted);
            held_stream(server, stream, &begun, id, true)
        }
        Deed::Answer(answer) => reply(server, stream, &answer, &headers),
    }
}

fn reply(
    server: &Server,
    stream: &mut TcpStream,
    answer: &Answer,
    headers: &str,
) -> io::Result<()> {
    let fault = &answer.fault;
    sleep(Duration::from_millis(fault.delay_ms));
    if let Some(code) = fault.exit {
        wire::end(code);
    }
    if fault.never {
        wire::wait_for_the_end(stream);
        server.note("heard", format_args!("hang-up {}", answer.method));
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    let mut headers = headers.to_owned();
    for (name, value) in &fault.headers {
        headers += &format!("{name}: {value}\r\n");
    }
    let mut text = answer.text.clone().into_bytes();
    if let Some(hex) = &fault.hex {
        text = wire::bytes_of(hex);
    }
    if let Some(code) = fault.status {
        let content = fault.content_type.as_deref().unwrap_or("application/json");
        headers += &format!("Content-Type: {content}\r\n");
        let body = if fault.text.is_some() { text } else { Vec::new() };
        return write(stream, &format!("{code} Status"), &headers, &body, fault);
    }
    if let Some(text) = &fault.flood {
        // Informational responses come before the response, which then never comes.
        let many = if text.starts_with("HTTP/1.1 1") {
            wire::many(text)
        } else {
            headers += "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            stream.write_all(format!("HTTP/1.1 200 OK\r\n{headers}").as_bytes())?;
            chunk(&wire::many(text))
        };
        let ended = wire::flood(stream, &many);
        server.note("heard", format_args!("hang-up {}", answer.method));
        return ended;
    }
    let has_more = !answer.before.is_empty() || fault.comments_ms.is_some();
    let notices = answer.after.iter().map(|text| wire::event(text.as_bytes()));
    let events = fault.events || has_more || !answer.after.is_empty();
    let mut raw = Vec::new();
    if events {
        headers += "Content-Type: text/event-stream\r\n";
        raw.extend(answer.before.iter().flat_map(|text| chunk(&wire::event(text.as_bytes()))));
        if fault.comments_ms.is_none() {
            raw.extend(chunk(&wire::event(&text)));
        }
        raw.extend(notices.flat_map(|event| chunk(&event)));
    } else {
        headers += &format!(
            "Content-Type: {}\r\n",
            fault.content_type.as_deref().unwrap_or("application/json")
        );
        // In two chunks, so that an end between them can be seen.
        let (one, other) = text.split_at(text.len() / 2);
        raw.extend([one, other].into_iter().flat_map(chunk));
    }
    if !(events || fault.chunked) {
        write(stream, "200 OK", &headers, &text, fault)?;
    } else {
        let head = format!("HTTP/1.1 200 OK\r\n{headers}Transfer-Encoding: chunked\r\n\r\n");
        let mut whole = [head.as_bytes(), &raw].concat();
        match fault.comments_ms {
            Some(pause) => {
                wire::write_or_cut(stream, &whole, fault)?;
                let alive = chunk(b": still here\n\n");
                while wire::write_or_cut(stream, &alive, &Fault::default()).is_ok() {
                    sleep(Duration::from_millis(pause));
                }
                server.note("heard", format_args!("hang-up {}", answer.method));
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            None => {
                whole.extend_from_slice(b"0\r\n\r\n");
                wire::write_or_cut(stream, &whole, fault)?;
            }
        }
    }
    if let Some(code) = fault.exit_after {
        wire::end(code);
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
    wire::write_or_cut(stream, &[head.as_bytes(), body].concat(), fault)
}

fn get_stream(server: &Arc<Server>, stream: &mut TcpStream, request: &Request) -> io::Result<()> {
    let session = request.headers.get("mcp-session-id").cloned().unwrap_or_default();
    held_stream(server, stream, "", session, false)
}

/// Holds an event stream open, to tell of changes, until its client ends it.
fn held_stream(
    server: &Arc<Server>,
    stream: &mut TcpStream,
    begun: &str,
    whose: String,
    is_listen: bool,
) -> io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
    let first = if begun.is_empty() { Vec::new() } else { wire::event(begun.as_bytes()) };
    let opening = [head.as_bytes(), &first].concat();
    wire::write_or_cut(stream, &opening, &Fault::default())?;
    server.note("heard", "stream");
    let outlet = Outlet::Events(Arc::new(Mutex::new(stream.try_clone()?)));
    let listener = Listener { outlet, whose: whose.clone(), is_listen };
    server.listeners.lock().expect("no thread panics").push(listener);
    wire::wait_for_the_end(stream);
    server.listeners.lock().expect("no thread panics").retain(|other| other.whose != whose);
    server.note("heard", "stream ended");
    Err(io::ErrorKind::ConnectionAborted.into())
}

// === HTTP+SSE ===

fn pair_stream(server: &Arc<Server>, stream: &mut TcpStream) -> io::Result<()> {
    let session = server.new_session();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
    let endpoint = format!("event: endpoint\ndata: /messages?session={session}\n\n");
    // Known before it is told: the first message comes at once.
    let outlet = Outlet::Events(Arc::new(Mutex::new(stream.try_clone()?)));
    let listener = Listener { outlet, whose: session.clone(), is_listen: false };
    server.listeners.lock().expect("no thread panics").push(listener);
    wire::write_or_cut(stream, &[head, &endpoint].concat().into_bytes(), &Fault::default())?;
    wire::wait_for_the_end(stream);
    server.listeners.lock().expect("no thread panics").retain(|other| other.whose != session);
    server.note("heard", "stream ended");
    Err(io::ErrorKind::ConnectionAborted.into())
}

fn pair_message(
    server: &Arc<Server>,
    script: &Script,
    stream: &mut TcpStream,
    request: &Request,
) -> io::Result<()> {
    let session = request.path.split_once("session=").map(|(_, session)| session);
    let outlet = session.and_then(|session| {
        let listeners = server.listeners.lock().expect("no thread panics");
        let own = listeners.iter().find(|listener| listener.whose == session);
        own.map(|listener| listener.outlet.clone())
    });
    let message = serde_json::from_slice::<serde_json::Value>(&request.body);
    let (Some(outlet), Ok(message)) = (outlet, message) else {
        // Where no pair was opened: this is what leads a client to try it.
        return write(stream, "405 Method Not Allowed", "", b"", &Fault::default());
    };
    let deed = server.hear(script, &message);
    write(stream, "202 Accepted", "", b"", &Fault::default())?;
    if let Deed::Answer(answer) = deed {
        spawn(move || {
            let fault = &answer.fault;
            sleep(Duration::from_millis(fault.delay_ms));
            if let Some(code) = fault.exit {
                wire::end(code);
            }
            if !fault.never {
                let _ = outlet.answer(&answer);
            }
        });
    }
    Ok(())
}
