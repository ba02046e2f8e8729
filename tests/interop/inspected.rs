//! Servers of Node and Python that fetch something where TLS is inspected: the certificates of all
//! hosts are signed by a CA that only the variables of the user name.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::egress::write_certificates;
use crate::fleet::{Fleet, soon};
use crate::parts::{part, script};

/// Host whose certificate the CA has signed.
struct Host {
    listener: TcpListener,
    tls: TlsAcceptor,
}

impl Host {
    async fn bind(certificates: &Path) -> Self {
        let chain = CertificateDer::pem_file_iter(certificates.join("server.crt")).unwrap();
        let key = PrivateKeyDer::from_pem_file(certificates.join("server.key")).unwrap();
        let config = ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(chain.map(Result::unwrap).collect(), key).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { listener, tls: TlsAcceptor::from(Arc::new(config)) }
    }

    fn url(&self) -> String {
        format!("https://0.0.0.0:{}/", self.listener.local_addr().unwrap().port())
    }

    /// Answers requests one after another. A client that does not trust the CA ends the handshake.
    async fn serve(&self) -> Infallible {
        let response = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello";
        loop {
            let (stream, _) = self.listener.accept().await.unwrap();
            let Ok(mut stream) = self.tls.accept(stream).await else { continue };
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(response).await;
            let _ = stream.shutdown().await;
        }
    }
}

/// Lists the tools of a server that fetches the page. Weir has these variables beside its own.
async fn list(
    server: &[PathBuf; 2],
    url: &str,
    variables: &[(&str, &Path)],
) -> Result<String, String> {
    let [program, script] = server.each_ref().map(|path| path.display().to_string());
    let weir = Fleet::plain(&format!(
        "[upstreams.hub]\ncommand = {program:?}\nargs = [{script:?}, {url:?}]\n"
    ));
    let mut command = weir.command(&["list", "tools"]);
    for name in ["HTTPS_PROXY", "ALL_PROXY", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"] {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    let output = soon(command.envs(variables.iter().copied()).output()).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}

#[tokio::test]
async fn a_server_behind_tls_inspection_works_with_the_variables_of_its_user() {
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path());
    let (host, ca) = (Host::bind(folder.path()).await, folder.path().join("ca.crt"));
    let url = host.url();
    let work = async {
        for (program, server, variable) in [
            ("bin/node", "fetching_server.mjs", "NODE_EXTRA_CA_CERTS"),
            ("mcp2/bin/python", "fetching_server.py", "SSL_CERT_FILE"),
        ] {
            let server = [part(program), script(server)];
            let listed = list(&server, &url, &[(variable, &ca)]).await;
            assert!(listed.as_ref().is_ok_and(|it| it.contains("It says hello.")), "{listed:?}");
            let failed = list(&server, &url, &[]).await.expect_err("the CA is unknown");
            assert!(failed.contains("the page cannot be fetched"), "{failed}");
        }
    };
    tokio::select! {
        () = work => {}
        _ = host.serve() => {}
    }
}
