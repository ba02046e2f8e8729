//! Servers with an invalid certificate or an unfinished TLS handshake: Weir sends them no request
//! (F-10).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};
use tokio_util::task::TaskTracker;

use crate::lab::night::bound;
use crate::lab::weir::Weir;
use crate::lab::{Lab, beside_others, until};

type Issuer = CertifiedIssuer<'static, KeyPair>;

fn ca() -> Issuer {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Address of a server, and the number of bytes that it has received.
struct TestServer {
    port: u16,
    received_bytes: Arc<AtomicUsize>,
}

/// Server with a certificate of this authority for this name; without one it accepts connections
/// and sends nothing.
async fn listen(certificate: Option<(&Issuer, &str, bool)>, tasks: &TaskTracker) -> TestServer {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let received_bytes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&received_bytes);
    let acceptor = certificate.map(|(ca, name, has_expired)| {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        if has_expired {
            params.not_after = date_time_ymd(2020, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let certificate: CertificateDer<'static> =
            params.signed_by(&key, ca).unwrap().der().clone();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        TlsAcceptor::from(Arc::new(config.with_single_cert(vec![certificate], key).unwrap()))
    });
    tasks.spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            let Some(acceptor) = &acceptor else {
                kept.push(stream);
                continue;
            };
            if let Ok(mut stream) = acceptor.accept(stream).await {
                let mut bytes = [0; 1024];
                while let Ok(count @ 1..) = stream.read(&mut bytes).await {
                    counted.fetch_add(count, Ordering::Relaxed);
                }
            }
        }
    });
    TestServer { port, received_bytes }
}

#[tokio::test]
async fn f10_nothing_is_said_to_who_cannot_show_a_good_certificate() {
    let _turn = beside_others().await;
    let (tasks, ours, theirs) = (TaskTracker::new(), ca(), ca());
    let servers = [
        ("good", listen(Some((&ours, "localhost", false)), &tasks).await),
        ("expired", listen(Some((&ours, "localhost", true)), &tasks).await),
        ("wrong", listen(Some((&ours, "elsewhere.test", false)), &tasks).await),
        ("unknown", listen(Some((&theirs, "localhost", false)), &tasks).await),
        ("stalled", listen(None, &tasks).await),
    ];
    let lab = Lab::new();
    let tables = servers.iter().map(|(name, server)| {
        let port = server.port;
        format!("[upstreams.{name}]\nurl = \"https://localhost:{port}/mcp\"\nauth = {{ type = \"bearer\", token = \"secret\" }}\n")
    });
    lab.configure(&tables.collect::<String>());
    let authority = lab.folder().join("ca.pem");
    std::fs::write(&authority, ours.pem()).unwrap();
    let begin = Instant::now();
    let weir = Weir::start_with(lab.folder(), &[("SSL_CERT_FILE", &authority)]).await;
    let was_logged = |name: &str| {
        let about = format!("\"upstream\":\"{name}\"");
        weir.log().iter().any(|line| line.contains(&about) && line.contains("WARN"))
    };
    for (name, server) in &servers {
        if *name == "good" {
            until("the good one is spoken to", || {
                server.received_bytes.load(Ordering::Relaxed) > 0
            })
            .await;
        } else {
            until("it is logged", || was_logged(name)).await;
            assert_eq!(server.received_bytes.load(Ordering::Relaxed), 0, "{name}");
        }
    }
    eprintln!("F-10: all are logged after {:?}", begin.elapsed());
    // The handshake that stalls is given up after ten seconds.
    assert!(begin.elapsed() < bound(40_000, 12_000), "{:?}", begin.elapsed());
    weir.stop().await;
}
