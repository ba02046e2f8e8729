//! The floor: a forwarder of hyper on both sides and nothing else.
//!
//! It neither parses nor decides; bodies are forwarded as they arrive, over persistent connections.
//! Any cost of a gateway beyond it is the gateway's own.

use std::convert::Infallible;
use std::net::SocketAddr;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, Uri, Version};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

/// Arguments of the forwarder.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Settings {
    /// Address to listen on
    #[arg(long)]
    listen: SocketAddr,
    /// Address to forward to
    #[arg(long)]
    to: SocketAddr,
}

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// Forwards until it is killed, on as many threads as Weir: one for each processor.
pub(crate) fn run(settings: &Settings) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(settings))
}

async fn serve(settings: &Settings) -> std::io::Result<()> {
    let listener = TcpListener::bind(settings.listen).await?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Client<_, Incoming> = Client::builder(TokioExecutor::new()).build(connector);
    let to = settings.to;
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        let client = client.clone();
        let service = service_fn(move |request| {
            let client = client.clone();
            async move { Ok::<_, Infallible>(forward(&client, to, request).await) }
        });
        let serving = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            // An error means that the client has disconnected.
            let _ = serving.await;
        });
    }
}

async fn forward(
    client: &Client<HttpConnector, Incoming>,
    to: SocketAddr,
    mut request: Request<Incoming>,
) -> Response<Body> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let uri: Option<Uri> = format!("http://{to}{path}").parse().ok();
    let nothing = || Empty::new().map_err(|never| match never {}).boxed_unsync();
    let refused = |status: u16| {
        let mut response = Response::new(nothing());
        *response.status_mut() = status.try_into().expect("a status");
        response
    };
    let Some(uri) = uri else { return refused(400) };
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_11;
    request.headers_mut().remove("host");
    match client.request(request).await {
        Ok(response) => response.map(BodyExt::boxed_unsync),
        Err(_) => refused(502),
    }
}
