//! `[server.tls]`: the server's certificate and key, and the CAs of client certificates.

use crate::downstream::http::connection::tls::{Tls, TlsFileError, TlsFiles, TlsKey};

use super::LoadContext;
use super::secrets::read_secret;
use crate::config::reader::report::ValueError;
use crate::config::reader::table_reader::{Parsed, SpannedValue, TableReader};
use crate::config::reader::value;

/// Whether clients must present a certificate, if a CA for them is configured.
pub(super) const CLIENT_CERTIFICATES: [(&str, bool); 2] = [("optional", false), ("required", true)];

/// Reads the table, and with `on_disk` also checks the files that it names. Returns `None` if the
/// table is missing or invalid, which is reported.
pub(super) fn read_tls(t: &TableReader<'_>, context: &LoadContext<'_>) -> Option<TlsFiles> {
    t.has("tls").then(|| t.table("tls", |t| files(t, context)))?
}

fn files(t: &TableReader<'_>, context: &LoadContext<'_>) -> Option<TlsFiles> {
    let path =
        |key: &'static str| t.read(key, value::text).map(|path| t.base_folder(key).join(path));
    let certificate = path("cert");
    let client_ca = path("client_ca");
    let client_required = t.read("client_certificates", value::choice(&CLIENT_CERTIFICATES));
    let key = key(t, context);
    for (name, what) in [("cert", "the server's certificate"), ("key", "its private key")] {
        if !t.has(name) {
            let what = format!("{name} is missing: {what}, in PEM");
            t.table_error(ValueError::new(what, format!("add {name} = {}", example(name))));
        }
    }
    if t.has("client_certificates") && !t.has("client_ca") {
        let what = "without client_ca Weir requests no client certificates";
        t.error(
            "client_certificates",
            ValueError::new(what, "name the CA of the clients, or remove it"),
        );
    }
    let files = TlsFiles {
        certificate: certificate?,
        key: key?,
        client_ca,
        client_required: client_required.unwrap_or_default(),
    };
    if context.on_disk
        && let Err(broken) = Tls::open(files.clone())
    {
        let at = match broken {
            TlsFileError::Certificate(_) => "cert",
            TlsFileError::Key(_) => "key",
            TlsFileError::ClientCa(_) => "client_ca",
        };
        let remedy = "name a file in PEM that Weir's user may read, and that fits the others";
        t.error(at, ValueError::new(broken.to_string(), remedy));
    }
    Some(files)
}

fn example(key: &str) -> &'static str {
    match key {
        "cert" => "\"/etc/weir/tls.crt\"",
        _ => "{ file = \"/etc/weir/tls.key\" }",
    }
}

/// Reads the private key: a secret, but a key in a file is read again when the file changes.
fn key(t: &TableReader<'_>, context: &LoadContext<'_>) -> Option<TlsKey> {
    let text = read_secret(t, "key", &context.resolver, true)?;
    let file = t.get("key").and_then(|v| v.get_ref().as_table()?.get("file")?.get_ref().as_str());
    match file {
        Some(file) => Some(TlsKey::File(t.base_folder("key").join(file))),
        None => Some(TlsKey::Text(text)),
    }
}

/// Parses a name of a certificate: `dns:<name>`, `uri:<URI>` or `sha256:<hex>`.
pub(super) fn parse_certificate_name(v: &SpannedValue<'_>) -> Parsed<String> {
    let text = value::string(v)?;
    let bad = |what: &str, remedy: &str| Err(ValueError::new(what.to_owned(), remedy.to_owned()));
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
            "this is not a name of a certificate",
            "write \"dns:<name>\" or \"uri:<URI>\" of its subjectAltName, or \
             \"sha256:<its fingerprint>\"",
        ),
    }
}
