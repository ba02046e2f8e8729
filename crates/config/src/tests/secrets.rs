//! Tests of secrets: their sources, errors, and the headers made from `auth`.

use super::*;
use weir_base::net::allowed_addresses::AllowedAddresses;
use weir_oauth::{self as oauth, ClientCredential, Grant, RegisteredClient, ResourceIndicator};

const CHILD: &str = "[upstreams.a]\ncommand = \"x\"\n";

/// Returns a folder whose only upstream has one variable with the value `secret`.
fn home(secret: &str) -> Home {
    let path = std::env::var("PATH").unwrap();
    Home::new(&[("weir.toml", &format!("{CHILD}env.T = {secret}\n"))]).with(&[
        ("PATH", &path),
        ("TOKEN", "hunter2"),
        ("EMPTY", ""),
    ])
}

fn secret(home: &Home) -> String {
    let config = home.load().unwrap();
    let UpstreamSource::Process(ChildCommand { env, .. }) = &config.upstreams[0].settings.source
    else {
        panic!("a process")
    };
    let [(name, secret)] = &env[..] else { panic!("one variable") };
    assert_eq!(name, "T");
    assert!(!format!("{config:?}").contains(secret.expose()) || secret.expose().is_empty());
    secret.expose().to_owned()
}

/// Returns the headers of the only upstream with a URL.
fn headers(lines: &str) -> Vec<(String, String)> {
    let config = config(&format!("[upstreams.a]\nurl = \"http://h/\"\n{lines}\n"));
    let UpstreamSource::Http { headers, .. } = &config.upstreams[0].settings.source else {
        panic!("a server")
    };
    let header = |(name, value): (&hyper::header::HeaderName, &hyper::header::HeaderValue)| {
        assert!(value.is_sensitive());
        (name.to_string(), value.to_str().unwrap().to_owned())
    };
    headers.iter().map(header).collect()
}

#[test]
fn a_secret_is_a_string_a_variable_a_file_or_an_output() {
    assert_eq!(secret(&home("\"plain\"")), "plain");
    assert_eq!(secret(&home("\"Bearer ${TOKEN}\"")), "Bearer hunter2");
    assert_eq!(secret(&home("{ env = \"TOKEN\" }")), "hunter2");
    assert_eq!(secret(&home("{ command = [\"printf\", \"%s\", \"a b${TOKEN}\"] }")), "a bhunter2");
    assert_eq!(
        secret(&home("{ command = [\"sh\", \"-c\", \"echo $TOKEN; echo no >&2\"] }")),
        "hunter2"
    );
    for (contents, expected) in [
        ("hunter2\n", "hunter2"),
        ("hunter2\r\n", "hunter2"),
        ("hunter2\n\n", "hunter2\n"),
        ("hunter2\r", "hunter2\r"),
        (" ${TOKEN} $$", " ${TOKEN} $$"),
    ] {
        let home = home("{ file = \"t\" }");
        home.write("t", contents);
        assert_eq!(secret(&home), expected, "{contents:?}");
        assert_eq!(home.lines(), "");
    }
}

#[test]
fn a_secret_that_cannot_be_had_is_told_at_its_place() {
    let text = r#"[upstreams.a]
url = "http://h/"
[upstreams.a.headers]
A = { env = "GONE" }
B = { env = "hunter2-itself" }
C = { file = "gone" }
D = { file = "folder" }
E = { file = "large" }
F = { file = "latin" }
G = { file = "nul" }
H = { command = ["no-such-program", "hunter2"] }
I = { command = ["./folder"] }
J = { command = ["sh", "-c", "echo hunter2; echo hunter2 >&2; exit 3"] }
K = { command = ["sh", "-c", "kill -9 $$$$"] }
L = { command = ["cat", "large"] }
M = { command = ["cat", "latin"] }
N = { command = [] }
O = { command = "cat hunter2" }
P = { command = ["cat", 5] }
Q = { file = "a", env = "TOKEN" }
R = { fil = "hunter2" }
S = {}
T = ["hunter2"]
U = { file = "two-lines" }
V = { file = "${TOKEN}" }
W = { command = ["${TOKEN}"] }
X = { env = "${TOKEN}" }
"#;
    let home = Home::new(&[
        ("weir.toml", text),
        ("folder/x", ""),
        ("large", &"x".repeat(65_537)),
        ("nul", "hunter2\0"),
        ("two-lines", "hunter2\nhunter2\n"),
    ])
    .with(&[("PATH", &std::env::var("PATH").unwrap()), ("TOKEN", "hunter2")]);
    home.write("latin", b"hunter2\xff");
    assert!(!home.load().unwrap_err().render(true).contains("hunter2"));
    insta::assert_snapshot!(home.lines(), @r#"
    weir.toml:4:13: upstreams.a.headers.A.env: the variable GONE is not set (set GONE where Weir starts, or name another)
    weir.toml:5:13: upstreams.a.headers.B.env: this cannot name a variable (write a name like API_TOKEN)
    weir.toml:6:14: upstreams.a.headers.C.file: gone cannot be read: No such file or directory (os error 2) (check the path, which starts from the folder of this file, and its permissions)
    weir.toml:7:14: upstreams.a.headers.D.file: folder is not a file (name the file that holds the secret)
    weir.toml:8:14: upstreams.a.headers.E.file: large gives more than 64 KiB (check that it gives the secret alone)
    weir.toml:9:14: upstreams.a.headers.F.file: latin does not give UTF-8 (check that it gives the secret alone, as text)
    weir.toml:10:14: upstreams.a.headers.G.file: nul gives a NUL (check that it gives the secret alone, as text)
    weir.toml:11:17: upstreams.a.headers.H.command: no-such-program is not there (install it, or write its whole path; each argument is a string of its own)
    weir.toml:12:17: upstreams.a.headers.I.command: ./folder may not be executed (check its permissions)
    weir.toml:13:17: upstreams.a.headers.J.command: sh failed with exit code 3, and said "***" (run it by hand to see what it says)
    weir.toml:14:17: upstreams.a.headers.K.command: sh was killed by signal 9 (run it by hand to see what it says)
    weir.toml:15:17: upstreams.a.headers.L.command: cat gives more than 64 KiB (check that it gives the secret alone)
    weir.toml:16:17: upstreams.a.headers.M.command: cat does not give UTF-8 (check that it gives the secret alone, as text)
    weir.toml:17:17: upstreams.a.headers.N.command: this names no program (write the program and its arguments: ["op", "read", "op://vault/item"])
    weir.toml:18:17: upstreams.a.headers.O.command: expected a list, found a string (put it in brackets: ["…"])
    weir.toml:19:25: upstreams.a.headers.P.command: expected a string, found an integer (put it in quotes)
    weir.toml:20:14: upstreams.a.headers.Q.file: env says already where the secret is (keep one of the two)
    weir.toml:21:7: upstreams.a.headers.R.fil: no such key (did you mean `file`?)
    weir.toml:22:1: upstreams.a.headers.S: nothing says where the secret is (write exactly one of env, file, command, or the secret itself as a string)
    weir.toml:23:5: upstreams.a.headers.T: expected a string, found an array (write a string in quotes)
    weir.toml:24:5: upstreams.a.headers.U: a header's value cannot hold this (write visible ASCII characters)
    weir.toml:25:14: upstreams.a.headers.V.file: ${TOKEN} cannot be read: No such file or directory (os error 2) (check the path, which starts from the folder of this file, and its permissions)
    weir.toml:26:17: upstreams.a.headers.W.command: ${TOKEN} is not there (install it, or write its whole path; each argument is a string of its own)
    weir.toml:27:13: upstreams.a.headers.X.env: the variable ${TOKEN} is not set (set ${TOKEN} where Weir starts, or name another)
    "#);
}

#[test]
fn a_secret_that_others_may_use_is_refused_and_an_empty_one_is_a_warning() {
    let home = home("{ file = \"t\" }\nenv.E = { env = \"EMPTY\" }");
    std::fs::write(home.path("t"), "hunter2").unwrap();
    for (mode, refused) in
        [(0o600, false), (0o400, false), (0o640, true), (0o604, true), (0o601, true)]
    {
        use std::os::unix::fs::PermissionsExt;
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(home.path("t"), permissions).unwrap();
        let messages = home.load().err().map(|report| report.to_string()).unwrap_or_default();
        assert_eq!(messages.contains("chmod 600 t"), refused, "{mode:o}: {messages}");
    }
    insta::assert_snapshot!(home.lines(), @r"
    weir.toml:3:18: upstreams.a.env.T.file: t is open to its group or to others (chmod 600 t)
    weir.toml:4:17: upstreams.a.env.E.env: the secret is empty (check that this is where the secret is)
    ");
}

#[test]
fn the_same_command_runs_once() {
    let once = "{ command = [\"sh\", \"-c\", \"echo x >> runs; wc -l < runs\"] }";
    let home = home(&format!("{once}\nenv.U = {once}"));
    home.load().unwrap();
    assert_eq!(std::fs::read_to_string(home.path("runs")).unwrap(), "x\n");
}

#[test]
fn offline_no_command_is_run() {
    let home = home("{ command = [\"touch\", \"ran\"] }");
    assert_eq!(Config::check(&home.path("weir.toml"), &home.options).unwrap(), []);
    assert!(!home.path("ran").exists());
    home.load().unwrap();
    assert!(home.path("ran").exists());
}

#[test]
fn what_is_switched_off_needs_no_secrets_and_no_variables() {
    let off = "[upstreams.b]\nenabled = false\nurl = \"${URL}\"\nprefix = \"${PREFIX:?name it}\"\ntools.deny = [\"${X}\"]\nauth = { type = \"bearer\", token = { env = \"GONE\" } }\nheaders = { A = { file = \"gone\" }, B = { command = [\"touch\", \"ran\"] }, C = \"${GONE}\" }\n";
    let home = Home::new(&[("weir.toml", &format!("{CHILD}{off}"))]);
    let config = home.load().unwrap();
    assert_eq!((config.warnings.len(), config.upstreams.len()), (0, 1));
    assert!(!home.path("ran").exists());
    // The command is in one file or in two.
    home.write(
        "weir.toml",
        format!("include = [\"off\"]\n{CHILD}{}", off.replace("enabled = false\n", "")),
    );
    home.write("off", "[upstreams.b]\nenabled = false\n");
    assert_eq!(home.load().unwrap().warnings, []);
    // Its syntax is still checked.
    home.write(
        "weir.toml",
        format!(
            "{CHILD}[upstreams.b]\nenabled = false\ncommand = \"x\"\nenv.A = {{ fil = \"gone\" }}\n"
        ),
    );
    assert!(home.mistakes().contains("did you mean `file`?"));
}

#[test]
fn what_is_not_used_needs_no_secrets_and_no_variables_and_is_still_known() {
    let unused = "[upstreams.b]\nurl = \"${URL}\"\nprefix = \"${PREFIX}\"\nresources.deny = [\"${X}\"]\nheaders = { A = { env = \"GONE\" }, B = { command = [\"touch\", \"ran\"] } }\n[upstreams.c]\nprompts_dir = \"gone\"\nprefix = \"d\"\n";
    let mut home = Home::new(&[("weir.toml", &format!("{CHILD}{unused}"))]);
    assert!(home.lines().contains("the variable URL is not set"));
    std::fs::remove_file(home.path("ran")).ok();
    home.options.only = Some(vec!["a".to_owned()]);
    let config = home.load().unwrap();
    assert_eq!((config.warnings.len(), config.upstreams.len()), (0, 1));
    assert!(!home.path("ran").exists());
    let known = config.summaries.iter().map(|it| {
        let lets_out = it.resources.as_ref().map(|resources| resources.allow.len());
        (it.name.as_str(), it.enabled, it.prefix.as_deref(), lets_out)
    });
    assert_eq!(
        known.collect::<Vec<_>>(),
        [("a", true, Some("a"), Some(1)), ("b", true, None, None), ("c", true, Some("d"), Some(0))]
    );
    // All other checks still run: syntax, clashes, and the number of upstreams.
    home.write(
        "weir.toml",
        format!("{CHILD}[naming]\nmode = \"none\"\n[upstreams.b]\ncommand = \"x\"\nprefix = \"a\"\nargz = [\"${{X}}\"]\n"),
    );
    let mistakes = home.mistakes();
    for expected in ["2 are enabled", "belongs to [upstreams.a] already", "did you mean `args`?"] {
        assert!(mistakes.contains(expected), "{mistakes}");
    }
    assert!(!mistakes.contains("is not set"), "{mistakes}");
}

#[test]
fn the_entrance_needs_no_upstream() {
    let home = Home::new(&[("weir.toml", &format!("{CHILD}env.T = {{ env = \"GONE\" }}\n"))]);
    assert!(Config::without_upstreams(&home.path("weir.toml"), &home.options).is_ok());
}

#[test]
fn auth_becomes_a_header() {
    let header = |value: &str| vec![("authorization".to_owned(), value.to_owned())];
    assert_eq!(headers("auth = { type = \"none\" }"), []);
    assert_eq!(headers("auth = { type = \"bearer\", token = \"abc\" }"), header("Bearer abc"));
    // RFC 7617, 2.
    assert_eq!(
        headers("auth = { type = \"basic\", user = \"Aladdin\", password = \"open sesame\" }"),
        header("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==")
    );
    assert_eq!(
        headers("auth = { type = \"basic\", user = \"\", password = \"é:\" }"),
        header("Basic OsOpOg==")
    );
    let beside =
        headers("headers.X-Team = \"blue\"\nauth = { type = \"bearer\", token = \"abc\" }");
    assert_eq!(beside[0], ("x-team".to_owned(), "blue".to_owned()));
    assert_eq!(beside[1..], header("Bearer abc"));
}

#[test]
fn an_auth_that_cannot_be_is_told_at_its_place() {
    let messages = |lines: &str| {
        let report = parse(&format!("[upstreams.a]\nurl = \"http://h/\"\n{lines}\n")).unwrap_err();
        assert!(!report.render(true).contains("hunter2"), "{report}");
        report.problems().iter().map(|problem| format!("{problem:?}\n")).collect::<String>()
    };
    let all = [
        "auth = { type = \"bearer\" }",
        "auth = { type = \"bearer\", token = \"\" }",
        "auth = { type = \"bearer\", token = \"Bearer hunter2\" }",
        "auth = { type = \"bearer\", token = \"hunter2 hunter2\" }",
        "auth = { type = \"bearer\", token = \"hunter2\", user = \"a\" }",
        "auth = { type = \"basic\", token = \"hunter2\" }",
        "auth = { type = \"basic\", user = \"a:b\", password = \"hunter2\" }",
        "auth = { type = \"basic\", user = \"a\", password = \"hunter2\\n\" }",
        "auth = { type = \"none\", password = \"hunter2\" }",
        "auth = { type = \"beaer\", token = \"hunter2\" }",
        "auth = { token = \"hunter2\" }",
        "auth = { type = \"bearer\", tokn = \"hunter2\" }",
        "auth = \"hunter2\"",
        "auth = { type = \"bearer\", token = \"hunter2\" }\nheaders.authorization = \"hunter2\"",
        "auth = { type = \"bearer\", token = { file = \"/nonexistent\", fil = \"hunter2\" } }",
    ];
    insta::assert_snapshot!(all.map(messages).concat(), @r#"
    weir.toml:3:1: upstreams.a.auth.token: is missing (add it beside type)
    weir.toml:3:35: upstreams.a.auth.token: the token is empty (write the token alone)
    weir.toml:3:35: upstreams.a.auth.token: the word Bearer is put before the token anyway (write the token alone)
    weir.toml:3:35: upstreams.a.auth.token: a token holds visible ASCII characters and no spaces (write the token alone)
    weir.toml:3:53: upstreams.a.auth.user: does not go with this type (remove it, or correct type)
    weir.toml:3:1: upstreams.a.auth.user: is missing (add it beside type)
    weir.toml:3:1: upstreams.a.auth.password: is missing (add it beside type)
    weir.toml:3:34: upstreams.a.auth.token: does not go with this type (remove it, or correct type)
    weir.toml:3:33: upstreams.a.auth.user: a user's name cannot hold this (write it without colons)
    weir.toml:3:49: upstreams.a.auth.password: a password cannot hold control characters or more than one line (write the password alone)
    weir.toml:3:36: upstreams.a.auth.password: does not go with this type (remove it, or correct type)
    weir.toml:3:17: upstreams.a.auth.type: "beaer" is not a choice here (did you mean `bearer`?)
    weir.toml:3:1: upstreams.a.auth.type: is missing (add type = "bearer", "basic", "oauth" or "none")
    weir.toml:3:1: upstreams.a.auth.token: is missing (add it beside type)
    weir.toml:3:27: upstreams.a.auth.tokn: no such key (did you mean `token`?)
    weir.toml:3:8: upstreams.a.auth: expected a table, found a string (write [upstreams.a.auth] and its keys below)
    weir.toml:3:8: upstreams.a.auth: headers holds an Authorization already (keep one of the two)
    weir.toml:3:44: upstreams.a.auth.token.file: /nonexistent cannot be read: No such file or directory (os error 2) (check the path, which starts from the folder of this file, and its permissions)
    weir.toml:3:60: upstreams.a.auth.token.fil: no such key (did you mean `file`?)
    "#);
    let report = parse(&format!("{CHILD}auth = {{ type = \"none\" }}\n")).unwrap_err();
    assert!(report.to_string().contains("goes with url, not with command"), "{report}");
}

#[test]
fn an_account_has_a_grant_and_the_keys_of_that_grant() {
    let account = |lines: &str| {
        let auth = format!("auth = {{ type = \"oauth\", {lines} }}");
        parse(
            &format!("[upstreams.a]\nurl = \"https://h/mcp?k=hunter2#\"\n{auth}\n")
                .replace('#', ""),
        )
    };
    let settings = |lines: &str| {
        let config = account(lines).unwrap_or_else(|report| panic!("{report}"));
        let UpstreamSource::Http { headers, account, .. } = &config.upstreams[0].settings.source
        else {
            panic!("a url")
        };
        assert!(headers.is_empty());
        ((**account.as_ref().unwrap()).clone(), config.warnings)
    };
    let secret = "grant = \"client_credentials\", client_id = \"w\", client_secret = \"hunter2\"";
    let (found, warnings) = settings(&format!(
        "{secret}, issuer = \"https://ID.test\", scopes = [\"a\", \"b\"], resource = \"urn:x\", \
         params = {{ audience = \"y\" }}"
    ));
    let credential = ClientCredential::Secret("hunter2".into());
    let expected = oauth::Settings {
        upstream: "https://h/mcp".parse().unwrap(),
        url_hash: found.url_hash.clone(),
        grant: Grant::ClientCredentials(RegisteredClient { id: "w".into(), credential }),
        issuer: Some("https://ID.test".into()),
        metadata_url: None,
        metadata_issuer: None,
        token_url: None,
        scopes: Some(vec!["a".into(), "b".into()]),
        resource: ResourceIndicator::Named("urn:x".into()),
        assumes_pkce: false,
        params: vec![("audience".into(), "y".into())],
        client_metadata_url: None,
        state: None,
        allowed: AllowedAddresses::default(),
    };
    assert_eq!((found, warnings.len()), (expected, 0));
    let (found, warnings) = settings(&format!("{secret}, resource = \"none\""));
    assert_eq!((found.issuer, found.resource), (None, ResourceIndicator::None));
    assert!(format!("{:?}", warnings[0]).contains("add issuer"), "{warnings:?}");
    let pem = rcgen::KeyPair::generate().unwrap().serialize_pem().replace('\n', "\\n");
    let (found, _) = settings(&format!(
        "grant = \"client_credentials\", client_id = \"w\", client_key = \"{pem}\", client_key_id = \"k\", \
         token_url = \"https://id.test/t\""
    ));
    let Grant::ClientCredentials(RegisteredClient { credential, .. }) = found.grant else {
        panic!("a client")
    };
    let ClientCredential::Key(key) = credential else { panic!("a key") };
    assert_eq!(format!("{key:?}"), "SigningKey(\"ES256\", Some(\"k\"))");
    let (found, warnings) = settings("resource = \"auto\"");
    assert_eq!(found.grant, Grant::AuthorizationCode { client: None });
    assert_eq!(warnings, []);
    let (found, _) = settings("client_id = \"w\", issuer = \"https://i\"");
    let client = RegisteredClient { id: "w".into(), credential: ClientCredential::None };
    assert_eq!(found.grant, Grant::AuthorizationCode { client: Some(client) });
    let (found, _) =
        settings("grant = \"jwt_bearer\", assertion = { file = \"t\" }, issuer = \"https://i\"");
    assert_eq!(found.grant, Grant::JwtBearer { assertion: "t".into() });

    let messages = |lines: &str| {
        let report = account(lines).unwrap_err();
        assert!(!report.render(true).contains("hunter2"), "{report}");
        report.problems().iter().map(|problem| format!("{problem:?}\n")).collect::<String>()
    };
    let all = [
        "client_secret = \"hunter2\"",
        "grant = \"client_credentials\", client_secret = \"hunter2\"",
        "grant = \"client_credentials\", client_id = \"w\"",
        "grant = \"client_credentials\", client_id = \"w\", client_key = \"hunter2\"",
        "grant = \"client_credentials\", client_id = \"w\", client_secret = \"hunter2\", client_key = \"hunter2\"",
        "grant = \"jwt_bearer\", client_secret = \"hunter2\", assertion = {}",
        "grant = \"jwt_bearer\", token = \"hunter2\", assertion = { file = \"x\" }, issuer = \"me:hunter2@h\"",
        "grant = \"password\"",
        "metadata_issuer = \"https://i\", params = { scope = \"x\" }",
        "token_url = \"https://i/token\"",
        "grant = \"jwt_bearer\", assertion = { file = \"a\" }, issuer = \"https://i\", assume_pkce = true",
    ];
    insta::assert_snapshot!(all.map(messages).concat(), @r#"
    weir.toml:3:1: upstreams.a.auth.client_id: is missing (add it beside the secret or key)
    weir.toml:3:1: upstreams.a.auth.client_id: is missing (add it beside grant)
    weir.toml:3:1: upstreams.a.auth.client_secret: is missing (add client_secret or client_key beside client_id)
    weir.toml:3:86: upstreams.a.auth.client_key: this is not a private key in PEM (make one with `openssl ecparam -name prime256v1 -genkey -noout`)
    weir.toml:3:113: upstreams.a.auth.client_key: client_secret says already how the client is recognized (keep one of the two)
    weir.toml:3:64: upstreams.a.auth.client_secret: does not go with this grant (remove it, or correct grant)
    weir.toml:3:87: upstreams.a.auth.assertion: file is missing (write assertion = { file = "path" })
    weir.toml:3:56: upstreams.a.auth.token: does not go with this type (remove it, or correct type)
    weir.toml:3:104: upstreams.a.auth.issuer: a URL must not hold credentials (put them in auth, with type = "basic")
    weir.toml:3:34: upstreams.a.auth.grant: "password" is not a choice here (one of: authorization_code, client_credentials, jwt_bearer)
    weir.toml:3:44: upstreams.a.auth.metadata_issuer: needs an issuer (add issuer beside it)
    weir.toml:3:68: upstreams.a.auth.params.scope: Weir sets this parameter itself (remove it)
    weir.toml:3:38: upstreams.a.auth.token_url: a user cannot sign in without the metadata of the authorization server (write issuer, and metadata_url if needed)
    weir.toml:3:112: upstreams.a.auth.assume_pkce: does not go with this grant (remove it, or correct grant)
    "#);
}

#[test]
fn access_tokens_go_to_an_http_url_only_where_that_is_written() {
    let secret = "grant = \"client_credentials\", client_id = \"w\", client_secret = \"hunter2\"";
    let load = |url: &str, more: &str| {
        let auth = format!("auth = {{ type = \"oauth\", {secret}, {more} }}");
        parse(&format!("[upstreams.a]\nurl = \"{url}\"\n{auth}\n"))
    };
    let plain = [
        "http://orders.svc:8080/mcp",
        "HTTP://10.0.0.1/mcp",
        "http://0.0.0.0/mcp",
        "http://localhost.test/mcp",
        "http://127.0.0.1.test/mcp",
        "http://[fe80::1]/mcp",
        "http://[::ffff:10.0.0.1]/mcp",
    ];
    let pinned = "issuer = \"https://i\"";
    for url in plain {
        let report = load(url, pinned).unwrap_err().to_string();
        for part in ["weir.toml", "upstreams.a.auth.type", "http:// url", "allow_http = true"] {
            assert!(report.contains(part) && !report.contains("hunter2"), "{url}: {report}");
        }
        assert!(load(url, &format!("{pinned}, allow_http = false")).is_err(), "{url}");
        let config = load(url, &format!("{pinned}, allow_http = true"));
        let config = config.unwrap_or_else(|report| panic!("{url}: {report}"));
        let [warning] = &config.warnings[..] else { panic!("{url}: {:?}", config.warnings) };
        assert_eq!(warning.key, "upstreams.a.auth.allow_http", "{url}");
        let token_url = "token_url = \"https://i/t\", allow_http = true";
        assert!(load(url, token_url).is_ok(), "{url}");
        // What such an upstream names could be changed on the way.
        let report = load(url, "allow_http = true").unwrap_err().to_string();
        assert!(report.contains("upstreams.a.auth.issuer"), "{url}: {report}");
    }
    for url in [
        "https://orders.svc/mcp",
        "http://localhost:3000/mcp",
        "http://LOCALHOST/mcp",
        "http://127.0.0.1/mcp",
        "http://127.1/mcp",
        "http://2130706433/mcp",
        "http://[::1]/mcp",
        "http://[::ffff:127.0.0.1]/mcp",
    ] {
        for more in [pinned, "issuer = \"https://i\", allow_http = true"] {
            let config = load(url, more).unwrap_or_else(|report| panic!("{url}: {report}"));
            assert_eq!(config.warnings, [], "{url}");
        }
    }
    // Other credentials are sent as they are written.
    for auth in [
        "auth = { type = \"bearer\", token = \"hunter2\" }",
        "auth = { type = \"basic\", user = \"u\", password = \"hunter2\" }",
        "headers = { Authorization = \"hunter2\" }",
    ] {
        let config = parse(&format!("[upstreams.a]\nurl = \"http://10.0.0.1/mcp\"\n{auth}\n"));
        assert_eq!(config.unwrap_or_else(|report| panic!("{report}")).warnings, [], "{auth}");
    }
}

#[test]
fn secrets_go_to_configured_urls_with_tls_or_on_this_machine_only() {
    let load = |sign_in: &str, url: &str, more: &str| {
        let secret =
            "grant = \"client_credentials\", client_id = \"w\", client_secret = \"hunter2\"";
        let auth = format!("auth = {{ type = \"oauth\", {secret}, {more} }}");
        parse(&format!("[sign_in]\n{sign_in}\n[upstreams.a]\nurl = \"{url}\"\n{auth}\n"))
    };
    let local = "insecure_loopback = true";
    for (key, others) in [
        ("issuer", ""),
        ("token_url", ""),
        ("token_url", "issuer = \"https://i\", "),
        ("metadata_url", "issuer = \"https://i\", "),
    ] {
        let with = |sign_in: &str, url: &str| {
            load(sign_in, "https://h/mcp", &format!("{others}{key} = \"{url}\""))
        };
        for url in ["http://i/x", "http://10.0.0.1/x", "http://localhost.test/x", "http://h/x"] {
            for sign_in in ["", local] {
                let report = with(sign_in, url).unwrap_err().to_string();
                let place = format!("upstreams.a.auth.{key}");
                assert!(report.contains(&place) && report.contains("https://"), "{report}");
                assert!(!report.contains("hunter2"), "{report}");
            }
        }
        for url in ["http://localhost:1/x", "http://127.0.0.1/x", "http://[::1]/x"] {
            assert!(with("", url).is_err() && with(local, url).is_ok(), "{key}: {url}");
        }
        assert!(with("", "https://i/x").is_ok(), "{key}");
    }
    // An upstream on this machine can be its own authorization server.
    let own = "token_url = \"http://127.0.0.1:3000/token\"";
    assert!(load("", "http://127.0.0.1:3000/mcp", own).is_ok());
    assert!(load("", "http://127.0.0.1:3001/mcp", own).is_err());
    // One elsewhere cannot, whatever its tokens may do.
    let own = "token_url = \"http://orders.svc/token\", allow_http = true";
    assert!(load("", "http://orders.svc/mcp", own).is_err());
    // An issuer whose metadata are elsewhere is only a name.
    let named = "issuer = \"http://id.svc\", metadata_url = \"https://i/metadata.json\"";
    assert!(load("", "https://h/mcp", named).is_ok());
}
