//! `[fleet]`: several replicas that serve the same clients.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use hyper::Uri;
use hyper::http::uri::Authority;
use rustix::system::uname;

use crate::LoadContext;
use crate::keys::shape::{self, ValueShape};
use crate::keys::{
    Described, Key, boolean, by_hand, count, custom, duration_of, path, settings, string, text,
    variant,
};
use crate::reader::report::ValueError;
use crate::reader::table_reader::{Parsed, SpannedValue, TableReader};
use crate::reader::value;
use crate::secrets::read_secret;
use weir_base::secrets::sealing::SealingKeys;
use weir_base::secrets::secret::Secret;
use weir_fleet::{FleetSettings, OnStoreDown, StoreKind, StoreLogin, StoreSettings};
use weir_upstream::connect::egress::has_valid_port;

/// Checked `[fleet]`.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetConfig {
    /// Address of the listener for the other replicas.
    pub listen: SocketAddr,
    /// Keys, one per line.
    pub(crate) keys: Secret,
    /// Settings of the replica.
    pub settings: FleetSettings,
}

impl FleetConfig {
    /// Returns the keys of the fleet.
    pub fn sealing_keys(&self) -> SealingKeys {
        SealingKeys::parse(self.keys.expose()).expect("the configuration was checked")
    }
}

settings! {
    /// Several replicas of `weir serve` that serve the same clients, behind any load balancer. All
    /// have the same `store`, `keys` and `name`. [Several replicas](replicas.md) describes what
    /// holds, what the store contains, and how to upgrade. `weir stdio` is no
    /// replica; it uses this table only to reach upstreams with `replicas = "one"`.
    ///
    /// ```toml
    /// #[fleet]
    /// #store.url = ["rediss://sentinel-0:26379", "rediss://sentinel-1:26379"]
    /// #store.sentinel = { name = "main", username = "weir", password = { file = "secrets/s" } }
    /// #store.username = "weir"
    /// #store.password = { file = "secrets/valkey" }
    /// #store.ca = "valkey-ca.crt"
    /// #store.cluster = false
    /// #store.timeout = "50ms"
    /// #keys = { file = "secrets/fleet-keys" }
    /// #listen = "0.0.0.0:8643"
    /// #advertise = "10.0.0.5:8643"
    /// ```
    pub(crate) struct FleetKeys {
        /// The store that all replicas use: Valkey, or Redis from 6.2 on.
        store: Option<StoreSettings> = None,
            by_hand(ValueShape::Table(StoreKeys::keys())).required();
        /// The keys of the fleet, a secret: 32 bytes in base64url, one key per line, at most eight.
        /// `weir fleet key` makes one. The first seals session ids and whatever else replicas have
        /// in common; all of them open. They replace the keys in the folder of `[state]`.
        ///
        /// ```toml
        /// keys = { file = "secrets/fleet-keys" }
        /// ```
        keys: Option<Secret> = None, by_hand(ValueShape::Secret(shape::ANYTHING)).required();
        /// The address and port for other replicas. Only processes with a key of the fleet can
        /// connect; nevertheless it does not belong behind the load balancer.
        ///
        /// ```toml
        /// listen = "10.0.0.5:8643"
        /// ```
        listen: Option<SocketAddr> = None,
            string("IP address and port", shape::SOCKET, value::socket).optional().required();
        /// The host and port at which the other replicas reach this one.
        ///
        /// ```toml
        /// advertise = "weir-0.weir.default.svc:8643"
        /// ```
        advertise: Option<String> = None,
            string("host:port", shape::NOT_EMPTY, host_and_port)
                .optional()
                .default_text("the address of `listen`, if it names one");
        /// The name of the fleet in the store, which several fleets can share.
        name: String = "weir".to_owned(), string("name", shape::NOT_EMPTY, plain_name);
        /// Handling of requests that a limit counts, while the store is away: with `share` each
        /// replica admits what is left of the limit, divided by the last known number of replicas;
        /// with `refuse` they are refused. While the store is there, all replicas count together.
        on_store_down: OnStoreDown = OnStoreDown::Share, variant();
        /// The number of replicas, for a replica that starts without the store and has never known
        /// it: it admits its share of the limits. The last known number is kept in the folder of
        /// `[state]`.
        expected_replicas: u32 = 3, count(1..=1_000);
        /// The name of this replica in the log and in `weir fleet`.
        ///
        /// ```toml
        /// member = "weir-0"
        /// ```
        member: Option<String> = None,
            text().optional().default_text("the name of the machine");
    }
}

settings! {
    /// Keys of `fleet.store`.
    struct StoreKeys {
        /// The URL of the store; with the scheme `rediss` over TLS. A path is the number of a
        /// database. With `sentinel` it is the URL of a sentinel, with `cluster` that of a node;
        /// then it can be a list of several, one of which has to respond.
        ///
        /// ```toml
        /// url = "rediss://valkey:6379"
        /// ```
        url: Vec<String> = Vec::new(), urls().required();
        /// The sentinels that know which server is the primary. `url` names them.
        ///
        /// ```toml
        /// sentinel = { name = "mymaster", password = { file = "secrets/sentinel" } }
        /// ```
        sentinel: Option<(String, StoreLogin)> = None,
            by_hand(ValueShape::Table(SentinelKeys::keys()));
        /// `url` names nodes of a cluster. All keys of a fleet are in one slot of it.
        cluster: bool = false, boolean();
        /// The user of the store's access control list.
        ///
        /// ```toml
        /// username = "weir"
        /// ```
        username: Option<String> = None, text().optional();
        /// The password of the user, or of the store; a secret.
        ///
        /// ```toml
        /// password = { file = "secrets/valkey" }
        /// ```
        password: Option<Secret> = None, by_hand(ValueShape::Secret(shape::ANYTHING));
        /// The CAs of the store's certificate, in PEM.
        ///
        /// ```toml
        /// ca = "valkey-ca.crt"
        /// ```
        ca: Option<PathBuf> = None,
            path("path").optional().default_text("the CAs of the system");
        /// The longest wait for a reply of the store: 10 ms to 5 s. Requests that need the store
        /// wait so long. Keep it below a second, because a replica that waits does not renew its
        /// record, which expires after 5 s.
        timeout: Duration = Duration::from_millis(50), duration_of(reply_timeout);
    }
}

settings! {
    /// Keys of `fleet.store.sentinel`.
    struct SentinelKeys {
        /// The name of the primary in the configuration of the sentinels.
        ///
        /// ```toml
        /// name = "mymaster"
        /// ```
        name: Option<String> = None, text().optional().required();
        /// The user of the sentinels' access control list.
        ///
        /// ```toml
        /// username = "weir"
        /// ```
        username: Option<String> = None, text().optional();
        /// The password of the sentinels, a secret. That of the store is another one.
        ///
        /// ```toml
        /// password = { file = "secrets/sentinel" }
        /// ```
        password: Option<Secret> = None, by_hand(ValueShape::Secret(shape::ANYTHING));
    }
}

/// One URL of a store, or several.
fn urls() -> Key<Vec<String>> {
    let of = ValueShape::Text("redis or rediss URL", shape::NOT_EMPTY);
    custom(ValueShape::OneOrList(Box::new(of)), |t, name, _| t.one_or_list(name, store_url))
}

/// Reads the table; `None` if it is missing or invalid, which is reported.
pub(crate) fn read_fleet(root: &TableReader<'_>, context: &LoadContext<'_>) -> Option<FleetConfig> {
    root.has("fleet").then(|| root.table("fleet", |t| read_keys(t, context)))?
}

fn read_keys(t: &TableReader<'_>, context: &LoadContext<'_>) -> Option<FleetConfig> {
    let table = FleetKeys::read(t);
    let store = t.has("store").then(|| t.table("store", |t| read_store(t, context))).flatten();
    let keys = read_secret(t, "keys", &context.resolver, true);
    for (key, what) in [
        ("store", "the store that all replicas use: add store = { url = \"redis://host:6379\" }"),
        (
            "keys",
            "the keys of the fleet: run `weir fleet key secrets/fleet-keys`, and add keys = \
                  { file = \"secrets/fleet-keys\" }",
        ),
        ("listen", "the address for other replicas: add listen = \"0.0.0.0:8643\""),
    ] {
        if !t.has(key) {
            let (what, remedy) = what.split_once(": ").expect("each has a remedy");
            t.table_error(ValueError::new(format!("{key} is missing: {what}"), remedy));
        }
    }
    let is_usable = |keys: &Secret| SealingKeys::parse(keys.expose()).is_ok();
    if keys.as_ref().is_some_and(|keys| !is_usable(keys)) {
        let what = "these are not keys of a fleet: one to eight lines of 32 bytes in base64url";
        t.error("keys", ValueError::new(what, "make one with `weir fleet key FILE`"));
    }
    let listen = table.listen?;
    let address = table.advertise.or_else(|| {
        let names_one = !listen.ip().is_unspecified();
        names_one.then(|| listen.to_string())
    });
    if address.is_none() && !t.has("advertise") {
        let what = "this address does not say where the other replicas reach this one";
        t.error("listen", ValueError::new(what, "add advertise = \"host:port\""));
    }
    let replica = table.member.unwrap_or_else(host_name);
    let settings = FleetSettings {
        name: table.name,
        replica,
        address: address?,
        store: store?,
        on_store_down: table.on_store_down,
        expected_replicas: table.expected_replicas,
    };
    Some(FleetConfig { listen, keys: keys.filter(is_usable)?, settings })
}

fn read_store(t: &TableReader<'_>, context: &LoadContext<'_>) -> Option<StoreSettings> {
    let StoreKeys { url: urls, username, ca, cluster, timeout, .. } = StoreKeys::read(t);
    let password = read_secret(t, "password", &context.resolver, true);
    if !t.has("url") {
        let what = "url is missing: the address of the store";
        t.table_error(ValueError::new(what, "add url = \"redis://host:6379\""));
    }
    let has_sentinels = t.has("sentinel");
    let sentinels = t.table("sentinel", |t| read_sentinels(t, context, has_sentinels));
    let kind = match (has_sentinels, cluster) {
        (true, true) => {
            let what = "a store has sentinels or is a cluster, not both";
            t.error("cluster", ValueError::new(what, "remove one of the two"));
            None
        }
        (true, false) => sentinels,
        (false, true) => Some(StoreKind::Cluster),
        (false, false) => Some(StoreKind::Server),
    };
    if t.is_empty_list("url") {
        let what = "there is no URL of the store";
        t.error("url", ValueError::new(what, "write url = \"redis://host:6379\""));
    }
    if urls.len() > 1 && !has_sentinels && !cluster {
        let what = "several URLs are those of sentinels, or of nodes of a cluster";
        t.error("url", ValueError::new(what, "write one, or add `sentinel` or `cluster`"));
    }
    if urls.len() > MAX_URLS {
        let what = format!("more than {MAX_URLS} URLs");
        t.error("url", ValueError::new(what, "some of the sentinels or nodes are enough"));
    }
    let login = StoreLogin { username, password };
    (!urls.is_empty()).then_some(StoreSettings { urls, kind: kind?, login, ca, timeout })
}

fn read_sentinels(
    t: &TableReader<'_>,
    context: &LoadContext<'_>,
    is_there: bool,
) -> Option<StoreKind> {
    let SentinelKeys { name, username, .. } = SentinelKeys::read(t);
    let password = read_secret(t, "password", &context.resolver, true);
    if is_there && !t.has("name") {
        let what = "name is missing: the name of the primary, as the sentinels know it";
        t.table_error(ValueError::new(what, "add name = \"mymaster\""));
    }
    Some(StoreKind::Sentinels(name?, StoreLogin { username, password }))
}

/// Parses the URL of a store. Credentials have keys of their own, which may be secrets.
fn store_url(v: &SpannedValue<'_>) -> Parsed<String> {
    let text = value::string(v)?;
    let bad = |what: &str, remedy: &str| Err(ValueError::new(what.to_owned(), remedy.to_owned()));
    let is_whole = |url: &Uri| url.host().is_some() && has_valid_port(url);
    let Some(url) = text.parse::<Uri>().ok().filter(is_whole) else {
        return bad("this is not a URL of a store", "write redis://host:6379");
    };
    if !matches!(url.scheme_str(), Some("redis" | "rediss")) {
        return bad("the scheme of a store is redis or rediss", "write redis://host:6379");
    }
    if url.authority().is_some_and(|it| it.as_str().contains('@')) {
        return bad("credentials do not belong into the URL", "use username and password");
    }
    Ok(text.to_owned())
}

/// Parses the longest wait for a reply of the store.
fn reply_timeout(v: &SpannedValue<'_>) -> Parsed<Duration> {
    let timeout = value::duration(v)?;
    match REPLY_TIMEOUTS.contains(&timeout) {
        true => Ok(timeout),
        false => Err(ValueError::new(
            "this is out of bounds",
            "write \"10ms\" to \"5s\", as in \"50ms\"",
        )),
    }
}

fn host_and_port(v: &SpannedValue<'_>) -> Parsed<String> {
    let text = value::string(v)?;
    match text.parse::<Authority>() {
        Ok(parsed) if parsed.port_u16().is_some() && !text.contains('@') => Ok(text.to_owned()),
        _ => Err(ValueError::new("this is not a host and a port", "write host:8643")),
    }
}

/// Parses the name of a fleet: braces would end the hash tag of its keys.
fn plain_name(v: &SpannedValue<'_>) -> Parsed<String> {
    let name = value::text(v)?;
    match name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    {
        true => Ok(name),
        false => Err(ValueError::new(
            "this cannot name a fleet",
            "write at most 64 of A-Z, a-z, 0-9, `-`, `_` and `.`",
        )),
    }
}

fn host_name() -> String {
    uname().nodename().to_string_lossy().into_owned()
}

/// Bounds of the wait for a reply: less is no time for a network, and the record of a replica that
/// waits for longer has expired.
const REPLY_TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(5);
/// Most URLs of a store: all are tried at once.
const MAX_URLS: usize = 16;

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use crate::{Config, Options};

    const REST: &str = "[upstreams.a]\ncommand = \"x\"\n";
    const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    fn read(fleet: &str) -> Result<Config, String> {
        let text = format!("[fleet]\n{}\n{REST}", fleet.replace("KEY", KEY));
        let read = Config::parse(&text, Path::new("weir.toml"), &Options::default());
        read.map_err(|report| report.to_string())
    }

    #[test]
    fn a_user_does_not_sign_in_to_an_upstream_of_a_fleet() {
        let read = |grant: &str| {
            let whole =
                "store = { url = \"redis://h:1\" }\nkeys = \"KEY\"\nlisten = \"10.0.0.1:2\"\n";
            let auth = format!("auth = {{ type = \"oauth\", issuer = \"https://i\", {grant} }}");
            read(&format!("{whole}[upstreams.b]\nurl = \"https://h\"\n{auth}\n"))
        };
        let refused = read("grant = \"authorization_code\"").expect_err("refused");
        assert!(refused.contains("a user signs in on one machine"), "{refused}");
        let robot = "grant = \"client_credentials\", client_id = \"w\", client_secret = \"s\"";
        assert!(read(robot).is_ok());
    }

    #[test]
    fn a_fleet_has_a_store_keys_and_an_address_that_the_others_reach() {
        let whole =
            "store = { url = \"redis://h:1/2\" }\nkeys = \"KEY\\nKEY\"\nlisten = \"10.0.0.1:2\"\n";
        let fleet = read(whole).expect("sound").fleet.expect("there");
        assert_eq!((&*fleet.settings.address, &*fleet.settings.name), ("10.0.0.1:2", "weir"));
        assert!(!fleet.settings.replica.is_empty() && !format!("{fleet:?}").contains(KEY));
        let advertised = whole.replace("10.0.0.1", "0.0.0.0") + "advertise = \"pod-0.weir:3\"\n";
        let fleet = read(&advertised).expect("sound").fleet.expect("there");
        assert_eq!(fleet.settings.address, "pod-0.weir:3");
        assert_eq!(fleet.settings.store.timeout, Duration::from_millis(50));
        assert_eq!(fleet.settings.expected_replicas, 3);
        let more = advertised.clone() + "expected_replicas = 5\n";
        let fleet = read(&more).expect("sound").fleet.expect("there");
        assert_eq!(fleet.settings.expected_replicas, 5);
        for (text, expected) in [("10ms", 10), ("700ms", 700), ("5s", 5_000)] {
            let waiting = whole.replace(" }", &format!(", timeout = \"{text}\" }}"));
            let fleet = read(&waiting).expect("sound").fleet.expect("there");
            assert_eq!(fleet.settings.store.timeout, Duration::from_millis(expected));
        }
        for (line, replaced, problem) in [
            ("store", "", "store is missing"),
            ("store", "store = {}", "url is missing"),
            ("store", "store = { url = \"http://h\" }", "redis or rediss"),
            ("store", "store = { url = \"redis://u:p@h\" }", "credentials do not belong"),
            ("store", "store = { url = \"redis://\" }", "not a URL of a store"),
            ("store", "store = { url = \"redis://h:99999\" }", "not a URL of a store"),
            ("store", "store = { url = [] }", "no URL of the store"),
            ("store", "store = { url = \"redis://h\", timeout = \"9ms\" }", "out of bounds"),
            ("store", "store = { url = \"redis://h\", timeout = \"6s\" }", "out of bounds"),
            ("store", "store = { url = [\"redis://h\", \"redis://i\"] }", "several URLs are"),
            ("store", "store = { url = \"redis://h\", sentinel = {} }", "name is missing"),
            (
                "store",
                "store = { url = \"redis://h\", sentinel = { name = \"m\" }, cluster = true }",
                "not both",
            ),
            ("keys", "", "keys is missing"),
            ("keys", "keys = \"hunter2\"", "not keys of a fleet"),
            ("listen", "", "listen is missing"),
            ("listen", "listen = \"0.0.0.0:2\"", "does not say where"),
            ("listen", "listen = \"1.1.1.1:1\"\nadvertise = \"host\"", "not a host and a port"),
            ("listen", "listen = \"1.1.1.1:1\"\nname = \"{a}\"", "cannot name a fleet"),
            ("listen", "listen = \"1.1.1.1:1\"\nexpected_replicas = 0", "zero never means"),
        ] {
            let lines = whole.lines().map(|it| if it.starts_with(line) { replaced } else { it });
            let refused = read(&lines.collect::<Vec<_>>().join("\n")).expect_err(problem);
            assert!(refused.contains(problem), "{problem}: {refused}");
            assert!(!refused.contains("hunter2") && !refused.contains("u:p"), "{refused}");
        }
    }
}
