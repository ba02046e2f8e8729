//! Every HTTP route, with missing, bad, expired and another client's credentials (S-04).
//!
//! The routes come from the table that the server itself uses, and each is tried with every method,
//! so that a new route is tested too: its access without credentials has to be named here.

use std::collections::BTreeSet;
use std::time::Duration;

use hyper::header::{ALLOW, AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use hyper::{HeaderMap, Method};
use weir_downstream::http::HttpRoute;
use weir_mcp::revision::Revision;

use crate::cell::{LEGACY_HTTP, MODERN_HTTP, Side, Transport};
use crate::client::{Client, HttpExchange, HttpReply, set, string};
use crate::world::{World, hub, key_of, pass, settle, sha256, with_pair};

/// Routes that are served without credentials.
const PUBLIC: [HttpRoute; 1] = [HttpRoute::Metadata];

/// Every method that HTTP has for a path, and one that it does not have.
const METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"];

/// Paths where other servers offer something, sometimes without authentication.
const ELSEWHERE: [&str; 17] = [
    "/",
    "/mcp/",
    "/MCP",
    "/mcp/../mcp",
    "/%6dcp",
    "/mcp;x",
    "/mcp_message",
    "/message",
    "/sse/",
    "/messages/x",
    "/admin",
    "/metrics",
    "/api/v1/mcp/streamable",
    "/debug/pprof",
    "/.well-known/mcp",
    "/.well-known/oauth-protected-resource/",
    "/.well-known/oauth-authorization-server",
];

/// Interval of guesses below the limit of 20 a minute.
const APART: Duration = Duration::from_secs(3);

const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"prompts/list"}"#;

fn config() -> String {
    let late = sha256("late");
    with_pair(&format!(
        r#"
        [roles.ann]
        prompts.allow = ["*"]
        [roles.bob]
        prompts.allow = ["*"]
        [clients.late]
        role = "ann"
        key_sha256 = ["{late}"]
        expires = 2020-01-01T00:00:00Z
        [server]
        public_url = "https://weir.test"
        [auth.oidc.corp]
        issuer = "https://id.test"
        audience = ["weir"]
        default_role = "ann"
        "#
    ))
}

fn sides() -> impl Iterator<Item = Side> {
    Revision::ALL.into_iter().map(|revision| Side::new(revision, Transport::Http))
}

/// Invalid credentials, each as the values of the Authorization header.
fn no_credentials() -> Vec<(&'static str, Vec<HeaderValue>)> {
    let ann = key_of("ann");
    let bearer = |key: &str| value(&format!("Bearer {key}"));
    let long = "x".repeat(8_000);
    vec![
        ("nothing", vec![]),
        ("an unknown key", vec![bearer("nobodys")]),
        ("an expired key", vec![bearer("late")]),
        ("a cut key", vec![bearer(&ann[..ann.len() - 1])]),
        ("a key and more", vec![bearer(&format!("{ann}x"))]),
        ("a key in capitals", vec![bearer(&ann.to_uppercase())]),
        ("two keys in one", vec![bearer(&format!("{ann} {ann}"))]),
        ("a key and a comma", vec![bearer(&format!("{ann},"))]),
        ("a long key", vec![bearer(&long)]),
        ("what stands in the configuration", vec![bearer(&sha256(&ann))]),
        ("the name of a client", vec![bearer("ann")]),
        ("two headers", vec![bearer(&ann), bearer(&ann)]),
        ("a good and a bad one", vec![bearer("nobodys"), bearer(&ann)]),
        ("an empty header", vec![value("")]),
        ("no scheme", vec![value(&ann)]),
        ("a scheme alone", vec![value("Bearer")]),
        ("a scheme and a space", vec![value("Bearer ")]),
        ("another scheme", vec![value(&format!("Basic {ann}"))]),
        ("a scheme with a colon", vec![value(&format!("Bearer: {ann}"))]),
        ("a tab", vec![value(&format!("Bearer\t{ann}"))]),
        ("bytes", vec![HeaderValue::from_bytes(b"Bearer \xff\xfe").expect("opaque bytes")]),
    ]
}

fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("a header value")
}

/// Headers of a client of a revision, without credentials.
fn headers(client: &Client) -> HeaderMap {
    let mut headers = client.http().headers("prompts/list", "{}");
    set(&mut headers, "mcp-protocol-version", client.side.revision.as_str());
    headers.remove(AUTHORIZATION);
    headers
}

fn request(client: &Client, method: &str, path: &str, headers: &HeaderMap) -> HttpExchange {
    let method: Method = method.parse().expect("a method");
    let body = if method == Method::POST { LIST } else { "" };
    client.http().send(method, path, body, headers)
}

/// A reply without the `Date` header.
fn shown(mut reply: HttpReply) -> (u16, HeaderMap, String) {
    reply.headers.remove("date");
    (reply.status, reply.headers, reply.body)
}

/// Sessions of a client: one of the endpoint and one of the pair.
struct Sessions {
    id: String,
    address: String,
    _stream: HttpExchange,
}

async fn sessions(world: &World, client: &Client) -> Sessions {
    let id = client.http().session().expect("a session");
    let mut headers = client.http().plain_headers();
    headers.remove("mcp-session-id");
    let mut stream = client.http().send(Method::GET, "/sse", "", &headers);
    assert!(stream.opened().await);
    let address = string(stream.next().await.expect("an address"));
    settle().await;
    assert_eq!(world.sessions(), 2);
    Sessions { id, address, _stream: stream }
}

#[tokio::test(start_paused = true)]
async fn s04_no_route_is_open_to_who_shows_no_good_credentials() {
    let world = World::start(hub(MODERN_HTTP), &config()).await;
    let ann = world.client_as("ann", LEGACY_HTTP).await;
    let anns = sessions(&world, &ann).await;
    let routes = world.routes();
    let served: BTreeSet<_> = routes.iter().map(|(route, _)| format!("{route:?}")).collect();
    assert_eq!(served.len(), HttpRoute::ALL.len(), "each is switched on here: {served:?}");
    let closed: Vec<_> = routes.iter().filter(|(route, _)| !PUBLIC.contains(route)).collect();
    let mut tried = 0;
    for side in sides() {
        let client = world.uninitialized_client(side, None);
        for (route, path) in &closed {
            // A session is no credential, wherever it is named.
            let (_, query) = anns.address.split_once('?').expect("a query");
            for path in [path.clone(), format!("{path}?{query}")] {
                // The client sends requests, so the session does not expire.
                assert_eq!(ann.prompts().await.len(), 2);
                for method in METHODS {
                    let mut seen = Vec::new();
                    for (what, values) in no_credentials() {
                        let mut headers = headers(&client);
                        for value in values {
                            headers.append(AUTHORIZATION, value);
                        }
                        set(&mut headers, "mcp-session-id", &anns.id);
                        // Faster guesses are answered with a retry time.
                        pass(APART).await;
                        // The upstream may have been listed again in the meantime.
                        let before = world.requests();
                        let reply = request(&client, method, &path, &headers).whole().await;
                        let about = format!("{method} {path} with {what} in {side}: {reply:?}");
                        assert_eq!(reply.status, 401, "{route:?}: {about}");
                        assert_eq!(world.requests(), before, "{about}");
                        let challenge = reply.headers.get(WWW_AUTHENTICATE).expect("a challenge");
                        assert!(challenge.as_bytes().starts_with(b"Bearer"), "{about}");
                        assert!(!reply.headers.contains_key(ALLOW), "{about}");
                        seen.push((what, shown(reply)));
                        tried += 1;
                    }
                    let of = |name| &seen.iter().find(|(what, _)| *what == name).expect("it").1;
                    assert_eq!(of("an unknown key"), of("an expired key"), "{method} {path}");
                    assert_eq!(of("an unknown key"), of("a cut key"), "{method} {path}");
                }
            }
        }
    }
    assert_eq!(tried, 5 * closed.len() * 2 * METHODS.len() * no_credentials().len());
    assert_eq!(world.sessions(), 2, "nothing was opened");
    drop(anns);
    drop(ann);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn s04_a_key_is_good_in_its_header_and_nowhere_else() {
    let world = World::start(hub(MODERN_HTTP), &config()).await;
    let (before, ann) = (world.requests(), key_of("ann"));
    for side in sides() {
        let client = world.uninitialized_client(side, None);
        for (route, path) in world.routes() {
            if PUBLIC.contains(&route) {
                continue;
            }
            for method in route.methods() {
                for name in ["access_token", "token", "key", "api_key", "authorization", "Bearer"] {
                    let path = format!("{path}?{name}={ann}");
                    let reply = request(&client, method.as_str(), &path, &headers(&client));
                    let reply = reply.whole().await;
                    // Some forms are malformed headers.
                    assert!([400, 401].contains(&reply.status), "{method} {path}: {reply:?}");
                    assert!(!reply.body.contains(&ann), "{reply:?}");
                }
                for name in ["cookie", "x-api-key", "proxy-authorization", "x-forwarded-user"] {
                    for value in [ann.clone(), format!("Bearer {ann}"), format!("token={ann}")] {
                        let mut headers = headers(&client);
                        set(&mut headers, name, &value);
                        let reply = request(&client, method.as_str(), &path, &headers);
                        let reply = reply.whole().await;
                        assert_eq!(reply.status, 401, "{method} {path}, {name}: {reply:?}");
                    }
                }
            }
        }
    }
    assert_eq!((world.requests(), world.sessions()), (before, 0));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn s04_a_route_takes_its_own_methods_from_who_may_and_there_is_nothing_elsewhere() {
    let world = World::start(hub(MODERN_HTTP), &config()).await;
    for side in sides() {
        let client = world.uninitialized_client(side, Some(&key_of("ann")));
        for (route, path) in world.routes() {
            let allowed: Vec<_> = route.methods().iter().map(Method::as_str).collect();
            for method in METHODS {
                let mut reply = request(&client, method, &path, &client.http().plain_headers());
                assert!(reply.opened().await);
                let status = reply.status();
                assert_eq!(status != 405, allowed.contains(&method), "{method} {path}: {status}");
                assert!(![401, 403, 404].contains(&status), "{method} {path}: {status}");
            }
            let refused = request(&client, "PUT", &path, &client.http().plain_headers());
            let refused = refused.whole().await;
            let allow = refused.headers.get(ALLOW).expect("allow").to_str().expect("ASCII");
            assert_eq!(allow.split(", ").collect::<Vec<_>>(), allowed, "{path}");
        }
        // An unknown path answers alike with and without credentials.
        let stranger = world.uninitialized_client(side, None);
        for path in ELSEWHERE {
            for method in METHODS {
                let (ours, theirs) = (client.http().plain_headers(), headers(&stranger));
                let known = request(&client, method, path, &ours).whole().await;
                assert_eq!(known.status, 404, "{method} {path}: {known:?}");
                let unknown = request(&stranger, method, path, &theirs).whole().await;
                assert_eq!(shown(unknown), shown(known), "{method} {path}");
            }
        }
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn s04_s18_somebody_elses_session_looks_like_one_that_never_was() {
    let world = World::start(hub(MODERN_HTTP), &config()).await;
    let ann = world.client_as("ann", LEGACY_HTTP).await;
    let anns = sessions(&world, &ann).await;
    let (before, unknown) = (world.requests(), "A".repeat(anns.id.len()));
    let (pair, pair_id) = anns.address.split_once('=').expect("an id");
    let mut tried = 0;
    for side in sides().filter(|side| !side.is_modern()) {
        let bob = world.uninitialized_client(side, Some(&key_of("bob")));
        for (route, path) in world.routes() {
            // A header or the address names the session; a stream of the pair has none yet.
            let addresses = match route {
                HttpRoute::Endpoint => [(path.clone(), &*anns.id), (path, &*unknown)],
                HttpRoute::SseMessages => [(pair_id, pair_id), (&unknown, &unknown)]
                    .map(|(id, header)| (format!("{pair}={id}"), header)),
                HttpRoute::SseStream | HttpRoute::Metadata => continue,
            };
            for method in route.methods() {
                let mut seen = Vec::new();
                for (path, id) in &addresses {
                    let mut headers = bob.http().headers("prompts/list", "{}");
                    set(&mut headers, "mcp-session-id", id);
                    let reply = request(&bob, method.as_str(), path, &headers).whole().await;
                    assert_eq!(reply.status, 404, "{method} {path} in {side}: {reply:?}");
                    seen.push(shown(reply));
                }
                assert_eq!(seen[0], seen[1], "{method} of {route:?} in {side}");
                tried += 1;
            }
        }
    }
    assert_eq!(tried, 4 * 4);
    assert_eq!((world.requests(), world.sessions()), (before, 2), "they live on");
    assert_eq!(ann.prompts().await.len(), 2);
    drop(anns);
    drop(ann);
    world.close().await;
}
