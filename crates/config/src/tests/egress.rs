//! `[egress]`, and `tls` of an upstream.

use hyper::Uri;
use rcgen::{CertificateParams, KeyPair};

use super::*;
use weir_upstream::UpstreamSource;
use weir_upstream::connect::Egress;

fn egress(config: &Config) -> &Egress {
    match &config.upstreams[0].settings.source {
        UpstreamSource::Http { egress, .. } => egress,
        _ => panic!("a url"),
    }
}

#[test]
fn the_table_replaces_the_variables_of_the_environment() {
    let load = |table: &str, variables: &[(&str, &str)]| {
        let text = format!("[upstreams.a]\nurl = \"https://mcp.test\"\n[egress]\n{table}");
        let environment = variables.iter().copied().collect();
        let options = Options { environment, ..Options::default() };
        Config::parse(&text, Path::new("weir.toml"), &options)
    };
    let proxy = |table: &str, variables: &[(&str, &str)]| {
        let config = load(table, variables).unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(*egress(&config), config.egress);
        assert!(!format!("{config:?}").contains("hunter2"));
        let used = |url| {
            let uri = Uri::from_static(url);
            config.egress.proxy(&uri).map(|proxy| proxy.uri().host().unwrap().to_owned())
        };
        (used("https://mcp.test"), used("http://mcp.test"), config.warnings.len())
    };
    let is = |https: &str, http: &str| {
        let host = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        (host(https), host(http), 0)
    };
    let variable = ("HTTPS_PROXY", "http://weir:hunter2@p.test:3128");
    assert_eq!(proxy("", &[variable]), is("p.test", ""));
    assert_eq!(proxy("", &[("all_proxy", "q.test"), variable]), is("p.test", "q.test"));
    assert_eq!(proxy("", &[variable, ("NO_PROXY", "test")]), is("", ""));
    assert_eq!(proxy("no_proxy = []", &[variable, ("NO_PROXY", "*")]), is("p.test", ""));
    assert_eq!(proxy("proxy = \"http://r.test\"", &[variable]), is("r.test", "r.test"));
    assert_eq!(proxy("proxy = \"none\"", &[variable]), is("", ""));
    assert_eq!(proxy("", &[("HTTPS_PROXY", "")]), is("", ""));
    // A variable that other programs can use does not prevent a start.
    assert_eq!(proxy("", &[("ALL_PROXY", "socks5://hunter2")]), (None, None, 2));
    // It takes no proxy from other URLs.
    let host = Some("p.test".to_owned());
    assert_eq!(proxy("", &[variable, ("HTTP_PROXY", "socks5://hunter2")]), (host, None, 1));
    let report = load("proxy = \"socks5://u:hunter2@p.test\"", &[]).unwrap_err().to_string();
    assert!(report.contains("not the URL of an HTTP proxy") && !report.contains("hunter2"));
    // hyper would take a wrong port for none.
    for port in ["99999", "0", "", "http", "80/path"] {
        let url = format!("http://u:hunter2@p.test:{port}");
        let report = load(&format!("proxy = \"{url}\""), &[]).unwrap_err().to_string();
        for part in ["weir.toml", "egress.proxy", "not the URL of an HTTP proxy"] {
            assert!(report.contains(part) && !report.contains("hunter2"), "{port}: {report}");
        }
        for name in ["HTTPS_PROXY", "http_proxy", "all_proxy"] {
            let said = match load("", &[(name, &url)]) {
                // Other programs may use it.
                Ok(config) => {
                    assert!(matches!(port, "" | "80/path"), "{name}: {port}");
                    assert_eq!(config.egress, Egress::default(), "{name}: {port}");
                    config.warnings[0].to_string()
                }
                Err(report) => report.to_string(),
            };
            assert!(said.contains(&format!("the variable {name} is not")), "{said}");
            assert!(!said.contains("hunter2"), "{said}");
        }
    }
}

#[test]
fn an_exception_that_excepts_no_host_is_a_mistake_or_a_warning() {
    let load = |table: &str, no_proxy: &str| {
        let text = format!("[upstreams.a]\nurl = \"https://mcp.test\"\n[egress]\n{table}");
        let environment = [("NO_PROXY", no_proxy), ("ALL_PROXY", "p.test")].into_iter().collect();
        let options = Options { environment, ..Options::default() };
        Config::parse(&text, Path::new("weir.toml"), &options)
    };
    let report = load("no_proxy = [\"a.test\", \"10.0.0.0/33\"]", "").unwrap_err().to_string();
    assert!(report.contains("egress.no_proxy") && report.contains("10.0.0.0/8"), "{report}");
    for entry in ["*.a.test", "a.test:80", "[::1]", "a.test,b.test", "a b", "http://a.test"] {
        assert!(load(&format!("no_proxy = [{entry:?}]"), "").is_err(), "{entry}");
    }
    let config = load("", "a.test, http://u:hunter2@a.test, ,*.b.test,::1").expect("sound");
    let [warning] = &config.warnings[..] else { panic!("{:?}", config.warnings) };
    let warning = warning.to_string();
    let expected = "entry 2 and entry 4 of the variable NO_PROXY excepts no host";
    assert!(warning.contains(expected) && !warning.contains("hunter2"), "{warning}");
    assert!(load("", "localhost,.svc,10.0.0.0/8,*").expect("sound").warnings.is_empty());
    // The key replaces the variable, and without a proxy it does not matter.
    for table in ["no_proxy = []", "proxy = \"none\""] {
        assert!(load(table, "*.b.test").expect("sound").warnings.is_empty(), "{table}");
    }
}

#[test]
fn tls_files_are_read_and_what_is_wrong_with_them_is_said() {
    let home = Home::new(&[]);
    let make = || {
        let key = KeyPair::generate().unwrap();
        let signed = CertificateParams::default().self_signed(&key).unwrap();
        (signed.pem(), key.serialize_pem())
    };
    let ((certificate, key), (other, _)) = (make(), make());
    home.write("a.crt", &certificate);
    home.write("a.key", &key);
    home.write("b.crt", &other);
    home.write("none", "hunter2");
    let load = |url: &str, tls: &str| {
        home.write("weir.toml", format!("[upstreams.a]\nurl = \"{url}\"\ntls = {{ {tls} }}\n"));
        home.load()
    };
    let whole = "ca = \"a.crt\", cert = \"a.crt\", key = { file = \"a.key\" }";
    let first = load("https://h", whole).unwrap_or_else(|report| panic!("{report}"));
    let second = load("https://h", "ca = \"b.crt\"").unwrap_or_else(|report| panic!("{report}"));
    assert_ne!(egress(&first), egress(&second));
    home.write("b.crt", &certificate);
    let (one, other_name) = ("ca = \"a.crt\"", "ca = \"b.crt\"");
    let (one, same) = (load("https://h", one).unwrap(), load("https://h", other_name).unwrap());
    assert_eq!(egress(&one), egress(&same));
    home.write("b.crt", &other);
    let lines = [
        ("http://h", whole),
        ("https://h", "ca = \"absent.crt\""),
        ("https://h", "ca = \"none\""),
        ("https://h", "cert = \"a.crt\""),
        ("https://h", "key = { file = \"a.key\" }"),
        ("https://h", "cert = \"b.crt\", key = { file = \"a.key\" }"),
        ("https://h", "cert = \"a.crt\", key = { file = \"none\" }"),
        ("https://h", ""),
    ];
    let mistakes = lines.map(|(url, tls)| {
        // A file that is absent stops only its upstream.
        assert_eq!(load(url, tls).is_ok(), tls.contains("absent"));
        home.lines() + "\n"
    });
    let mistakes = mistakes.concat();
    assert!(!mistakes.contains("hunter2"), "{mistakes}");
    insta::assert_snapshot!(mistakes, @"
    weir.toml:3:7: upstreams.a.tls: tls protects nothing, because url is not an https:// URL (correct url, or remove tls)
    weir.toml:3:14: upstreams.a.tls.ca: absent.crt cannot be read: No such file or directory (os error 2) (name a file in PEM that Weir's user may read, and that fits the others)
    weir.toml:3:14: upstreams.a.tls.ca: the CA file contains none in PEM (name a file in PEM that Weir's user may read, and that fits the others)
    weir.toml:3:16: upstreams.a.tls.cert: cert without key is no identity (add key, or remove cert)
    weir.toml:3:15: upstreams.a.tls.key: key without cert is no identity (add cert, or remove key)
    weir.toml:3:31: upstreams.a.tls.key: the key does not fit the certificate: keys may not be consistent: KeyMismatch (name a file in PEM that Weir's user may read, and that fits the others)
    weir.toml:3:31: upstreams.a.tls.key: the key is not a private key in PEM (name a file in PEM that Weir's user may read, and that fits the others)
    weir.toml:3:1: upstreams.a.tls: nothing is set here (write ca, or cert and key, or remove tls)
    ");
}
