//! `[server.tls]`: what the server is secured with, and which certificates its clients may show.

use crate::downstream::http::connection::tls::{Broken, Files, Key, Tls};

use super::Surroundings;
use super::secrets::secret;
use crate::config::reader::report::Complaint;
use crate::config::reader::table_reader::{Parsed, Table, Value};
use crate::config::reader::value;

/// Whether clients have to show a certificate, where a CA for them is named.
pub(super) const CLIENT_CERTIFICATES: [(&str, bool); 2] = [("optional", false), ("required", true)];

/// Reads the table, and the files that it names where they are on disk; none if it is not written, or
/// if something in it is wrong, which is told.
pub(super) fn tls(t: &Table<'_>, surroundings: &Surroundings<'_>) -> Option<Files> {
    t.has("tls").then(|| t.table("tls", |t| files(t, surroundings)))?
}

fn files(t: &Table<'_>, surroundings: &Surroundings<'_>) -> Option<Files> {
    let path = |key: &'static str| t.read(key, value::text).map(|path| t.folder(key).join(path));
    let certificate = path("cert");
    let client_ca = path("client_ca");
    let client_required = t.read("client_certificates", value::choice(&CLIENT_CERTIFICATES));
    let key = key(t, surroundings);
    for (name, what) in [("cert", "the server's certificate"), ("key", "its private key")] {
        if !t.has(name) {
            let what = format!("{name} is missing: {what}, in PEM");
            t.object_to_all(Complaint::new(what, format!("add {name} = {}", example(name))));
        }
    }
    if t.has("client_certificates") && !t.has("client_ca") {
        let what = "without client_ca no client is asked for a certificate";
        t.object(
            "client_certificates",
            Complaint::new(what, "name the CA of the clients, or remove it"),
        );
    }
    let files = Files {
        certificate: certificate?,
        key: key?,
        client_ca,
        client_required: client_required.unwrap_or_default(),
    };
    if surroundings.on_disk
        && let Err(broken) = Tls::open(files.clone())
    {
        let at = match broken {
            Broken::Certificate(_) => "cert",
            Broken::Key(_) => "key",
            Broken::ClientCa(_) => "client_ca",
        };
        let remedy = "name a file in PEM that Weir's user may read, and that fits the others";
        t.object(at, Complaint::new(broken.to_string(), remedy));
    }
    Some(files)
}

fn example(key: &str) -> &'static str {
    match key {
        "cert" => "\"/etc/weir/tls.crt\"",
        _ => "{ file = \"/etc/weir/tls.key\" }",
    }
}

/// The key: a secret like others, but that one in a file is read again when the file changes.
fn key(t: &Table<'_>, surroundings: &Surroundings<'_>) -> Option<Key> {
    let text = secret(t, "key", &surroundings.vault, true)?;
    let file =
        t.written("key").and_then(|v| v.get_ref().as_table()?.get("file")?.get_ref().as_str());
    match file {
        Some(file) => Some(Key::File(t.folder("key").join(file))),
        None => Some(Key::Text(text)),
    }
}

/// A name that a certificate goes by: `dns:<name>`, `uri:<URI>` or `sha256:<hex>`.
pub(super) fn name(v: &Value<'_>) -> Parsed<String> {
    let text = value::string(v)?;
    let bad = |what: &str, remedy: &str| Err(Complaint::new(what.to_owned(), remedy.to_owned()));
    match text.split_once(':') {
        Some(("dns", name)) if !name.is_empty() => Ok(format!("dns:{}", name.to_ascii_lowercase())),
        Some(("uri", uri)) if uri.contains(':') => Ok(text.to_owned()),
        Some(("sha256", hex)) => {
            match hex.len() == 64 && hex.bytes().all(|it| it.is_ascii_hexdigit()) {
                true => Ok(text.to_ascii_lowercase()),
                false => bad(
                    "this is not a SHA-256",
                    "write 64 digits: openssl x509 -outform der | sha256sum",
                ),
            }
        }
        _ => bad(
            "a certificate does not go by this",
            "write \"dns:<name>\" or \"uri:<URI>\" of its subjectAltName, or \"sha256:<its fingerprint>\"",
        ),
    }
}
