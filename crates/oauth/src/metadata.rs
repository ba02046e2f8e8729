//! Metadata documents: of a protected resource (RFC 9728), and of an authorization server (RFC
//! 8414, OpenID Connect Discovery 1.0).

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use url::Url;

use super::url_rules::parse_name;

/// Kind of metadata document.
pub(super) trait Document: DeserializeOwned {
    /// Name that each document of this kind has.
    const MARK: &str;
}

/// Metadata of a protected resource.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct ResourceMetadata {
    /// Identifier of the resource.
    pub(super) resource: String,
    /// Issuers of its authorization servers.
    #[serde(default, deserialize_with = "short_list")]
    pub(super) authorization_servers: Vec<String>,
    #[serde(default, deserialize_with = "optional_short_list")]
    pub(super) scopes_supported: Option<Vec<String>>,
}

/// Metadata of an authorization server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct ServerMetadata {
    pub(super) issuer: String,
    pub(super) token_endpoint: String,
    #[serde(default)]
    pub(super) authorization_endpoint: Option<String>,
    #[serde(default)]
    pub(super) registration_endpoint: Option<String>,
    #[serde(default)]
    pub(super) revocation_endpoint: Option<String>,
    #[serde(default, deserialize_with = "optional_short_list")]
    pub(super) code_challenge_methods_supported: Option<Vec<String>>,
    #[serde(default, deserialize_with = "optional_short_list")]
    pub(super) scopes_supported: Option<Vec<String>>,
    #[serde(default, deserialize_with = "flag")]
    pub(super) client_id_metadata_document_supported: bool,
    #[serde(default, deserialize_with = "flag")]
    pub(super) authorization_response_iss_parameter_supported: bool,
    /// Methods of client authentication at the token endpoint; without them
    /// `client_secret_basic` (RFC 8414, 2).
    #[serde(default, deserialize_with = "optional_short_list")]
    pub(super) token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

impl ServerMetadata {
    /// Returns the endpoints of a server of revision 2025-03-26 without metadata.
    pub(super) fn default_of(origin: &str) -> Self {
        Self {
            authorization_endpoint: Some(format!("{origin}/authorize")),
            registration_endpoint: Some(format!("{origin}/register")),
            // Spec 2025-03-26, authorization, 2.1: PKCE is required.
            code_challenge_methods_supported: Some(vec!["S256".to_owned()]),
            ..Self::of_token_endpoint(origin.to_owned(), format!("{origin}/token"), None)
        }
    }

    /// Returns the metadata of a server of which only the token endpoint is known.
    pub(super) fn of_token_endpoint(
        issuer: String,
        token_endpoint: String,
        token_endpoint_auth_methods_supported: Option<Vec<String>>,
    ) -> Self {
        Self {
            issuer,
            token_endpoint,
            authorization_endpoint: None,
            registration_endpoint: None,
            revocation_endpoint: None,
            code_challenge_methods_supported: None,
            scopes_supported: None,
            client_id_metadata_document_supported: false,
            authorization_response_iss_parameter_supported: false,
            token_endpoint_auth_methods_supported,
        }
    }
}

impl Document for ResourceMetadata {
    const MARK: &str = "resource";
}

impl Document for ServerMetadata {
    const MARK: &str = "issuer";
}

impl ResourceMetadata {
    /// Returns whether these describe the server at this URL: they name it, or a folder of it on
    /// the same origin (RFC 9728, 3.3; many servers name their origin).
    pub(super) fn describes(&self, endpoint: &Url) -> bool {
        names(&self.resource, endpoint)
    }
}

/// Returns whether the identifier of a resource names this endpoint, or a folder of it.
pub(super) fn names(resource: &str, endpoint: &Url) -> bool {
    let Some(resource) = parse_name(resource) else { return false };
    let folder = resource.path().trim_end_matches('/');
    let below = endpoint.path().strip_prefix(folder);
    resource.origin() == endpoint.origin()
        && resource.fragment().is_none()
        && below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns whether two issuers are the same text, apart from a slash behind the host, which is the
/// path of both (RFC 3986, 6.2.3): some servers write it in one of their documents only.
pub(super) fn is_same_issuer(one: &str, other: &str) -> bool {
    let without_slash = |issuer: &str| {
        let rest = issuer.split_once("://").and_then(|(_, rest)| rest.strip_suffix('/'));
        let is_after_host = rest.is_some_and(|host| !host.contains(['/', '?', '#']));
        issuer.len() - usize::from(is_after_host)
    };
    one[..without_slash(one)] == other[..without_slash(other)]
}

/// Returns the URLs at which the metadata of a resource may be, in the order in which they are
/// tried (spec 2026-07-28, authorization server discovery).
pub(super) fn resource_metadata_urls(endpoint: &Url) -> Vec<String> {
    let (origin, path) = (endpoint.origin().ascii_serialization(), endpoint.path());
    let root = format!("{origin}/.well-known/oauth-protected-resource");
    match path.trim_end_matches('/') {
        "" => vec![root],
        path => vec![format!("{root}{path}"), root],
    }
}

/// Returns the URLs at which the metadata of an authorization server may be, in the order in which
/// they are tried (spec 2026-07-28, authorization server discovery).
pub(super) fn server_metadata_urls(issuer: &Url) -> Vec<String> {
    let (origin, path) = (issuer.origin().ascii_serialization(), issuer.path());
    let oauth = format!("{origin}/.well-known/oauth-authorization-server");
    let openid = format!("{origin}/.well-known/openid-configuration");
    match path.trim_end_matches('/') {
        "" => vec![oauth, openid],
        path => vec![
            format!("{oauth}{path}"),
            format!("{openid}{path}"),
            format!("{origin}{path}/.well-known/openid-configuration"),
        ],
    }
}

/// Reads a list, without what exceeds [`MAX_LIST`]. Some servers write null for none.
fn short_list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(optional_short_list(deserializer)?.unwrap_or_default())
}

fn optional_short_list<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<String>>, D::Error> {
    let mut list = Option::<Vec<String>>::deserialize(deserializer)?;
    if let Some(list) = &mut list {
        list.truncate(MAX_LIST);
        list.shrink_to_fit();
    }
    Ok(list)
}

fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Most entries of a list that are kept.
const MAX_LIST: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).expect("a URL")
    }

    #[test]
    fn documents_are_looked_for_in_the_order_of_the_specification() {
        let of_resource = |text| resource_metadata_urls(&url(text));
        let known = "https://a.test:8443/.well-known/oauth-protected-resource";
        assert_eq!(of_resource("https://a.test:8443/x/mcp"), [&format!("{known}/x/mcp"), known]);
        assert_eq!(of_resource("https://a.test:8443/mcp/?q=1#f"), [&format!("{known}/mcp"), known]);
        assert_eq!(of_resource("https://a.test:8443"), [known]);
        let of_server = |text| server_metadata_urls(&url(text));
        let (oauth, openid) = (
            "https://b.test/.well-known/oauth-authorization-server",
            "https://b.test/.well-known/openid-configuration",
        );
        assert_eq!(of_server("https://b.test/"), [oauth, openid]);
        assert_eq!(
            of_server("https://b.test/tenant1"),
            [
                "https://b.test/.well-known/oauth-authorization-server/tenant1",
                "https://b.test/.well-known/openid-configuration/tenant1",
                "https://b.test/tenant1/.well-known/openid-configuration",
            ]
        );
    }

    #[test]
    fn metadata_describe_a_server_or_a_folder_of_it_and_no_other() {
        let describes = |resource: &str| {
            let resource = resource.to_owned();
            let (authorization_servers, scopes_supported) = (Vec::new(), None);
            ResourceMetadata { resource, authorization_servers, scopes_supported }
                .describes(&url("https://a.test/x/mcp"))
        };
        for resource in [
            "https://a.test/x/mcp",
            "https://a.test/x/mcp?project=a",
            "https://a.test/x",
            "https://A.test:443/",
            "HTTPS://a.test:443",
            "https://a.test:/x/mcp",
        ] {
            assert!(describes(resource), "{resource}");
        }
        for resource in [
            "https://a.test/x/mc",
            "https://a.test/y",
            "https://a.test/x/mcp/deeper",
            "http://a.test/x/mcp",
            "https://a.test:444/x/mcp",
            "https://b.test/x/mcp",
            "https://a.test/x#f",
            "a.test",
            "",
            // The parser reads these as other texts, and a server may not.
            "https:\\\\a.test\\x\\mcp",
            "https://a.test\\x/mcp",
            "https://a.test/x\\mcp",
            "https:a.test/x/mcp",
            "https:/a.test/x/mcp",
            "https:///a.test/x/mcp",
            "https://a.test/x/\tmcp",
            "https://a.te\nst/x/mcp",
            " https://a.test/x/mcp",
            "https://a.test/x/mcp ",
            "https://a.test/x/mcp?a b",
            "https://a.test/y/../x/mcp",
            "https://a.test/./x/mcp",
            "https://a.test/y/%2e%2E/x/mcp",
            "https://a.test/x/mcp/..",
            "https://a.test/%78/mcp",
            "https://a%2etest/x/mcp",
            "https://ａ.test/x/mcp",
            "https://a.test:0443/x/mcp",
            "https://ann@a.test/x/mcp",
            "https://:@a.test/x/mcp",
            "https://a.test/x#",
        ] {
            assert!(!describes(resource), "{resource}");
        }
    }

    #[test]
    fn issuers_are_the_same_with_and_without_a_slash_behind_the_host_only() {
        for (one, other, is_same) in [
            ("https://a.test", "https://a.test", true),
            ("https://a.test", "https://a.test/", true),
            ("https://a.test:8443/", "https://a.test:8443", true),
            ("https://a.test/t", "https://a.test/t/", false),
            ("https://a.test//", "https://a.test/", false),
            ("https://a.test?x/", "https://a.test?x", false),
            ("https://a.test#/", "https://a.test#", false),
            ("https://A.test", "https://a.test", false),
            ("https://a.test:443", "https://a.test", false),
            ("http://a.test", "https://a.test", false),
            ("a.test/", "a.test", false),
            ("", "/", false),
        ] {
            assert_eq!(is_same_issuer(one, other), is_same, "{one} {other}");
            assert_eq!(is_same_issuer(other, one), is_same, "{other} {one}");
        }
    }

    #[test]
    fn long_lists_are_cut_and_missing_ones_are_none() {
        let text = format!(
            r#"{{"issuer":"i","token_endpoint":"t","x":1,"token_endpoint_auth_methods_supported":[{}"a"]}}"#,
            r#""a","#.repeat(300)
        );
        let metadata: ServerMetadata = serde_json::from_str(&text).expect("valid");
        let methods = metadata.token_endpoint_auth_methods_supported.expect("a list");
        assert_eq!(methods.len(), MAX_LIST);
        let metadata: ServerMetadata =
            serde_json::from_str(r#"{"issuer":"i","token_endpoint":"t"}"#).expect("valid");
        assert_eq!(metadata.token_endpoint_auth_methods_supported, None);
    }
}
