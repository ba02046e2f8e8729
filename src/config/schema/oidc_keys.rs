//! Keys of `[auth.oidc.<name>]`.

use serde_json::json;

use super::KeySpec;
use super::shape::{self, ValueShape};
use crate::policy::tokens::{Algorithm, Preset};

pub(super) fn providers() -> KeySpec {
    KeySpec::new(
        "oidc",
        ValueShape::map(shape::PLAIN_NAME, ValueShape::table(provider())),
        "An identity provider whose access tokens are accepted, as `Authorization: Bearer <token>` \
         like a key. `server.public_url` must be set. See [identity \
         providers](identity-providers.md).",
    )
    .example(
        "[auth.oidc.corp]\nissuer = \"https://id.example.com/realms/corp\"\npreset = \"keycloak\"\n\
         audience = [\"https://mcp.example.com/mcp\"]\nroles = { \"mcp-users\" = \"local\" }",
    )
}

fn provider() -> Vec<KeySpec> {
    let role = || ValueShape::Text("name of a role", shape::PLAIN_NAME);
    let scopes = || ValueShape::list(ValueShape::Text("scope", shape::SCOPE));
    let mut audience = ValueShape::list(ValueShape::text());
    let mut algorithms = ValueShape::list(ValueShape::choice(&Algorithm::NAMED));
    for list in [&mut audience, &mut algorithms] {
        if let ValueShape::List { count, .. } = list {
            *count = (1, None);
        }
    }
    vec![
        KeySpec::new(
            "issuer",
            ValueShape::Text("https URL", shape::ISSUER),
            "The provider's URL, exactly as in the `iss` of its tokens, including a slash at the \
             end. `http://` is accepted on this machine only. Weir finds the provider's metadata \
             and its keys from this URL.",
        )
        .required(),
        KeySpec::new(
            "audience",
            audience,
            "The audience of tokens: the `aud` of a token must contain one of these values, \
             exactly. Usually this is the URL of the MCP endpoint, or the identifier under which \
             Weir is registered at the provider.",
        )
        .required(),
        KeySpec::new(
            "preset",
            ValueShape::choice(&Preset::NAMED),
            "The product: it decides which claims contain the user and the roles, and how access \
             tokens are distinguished from other tokens.",
        )
        .default("generic"),
        KeySpec::new(
            "user_claim",
            ValueShape::text(),
            "The claim that identifies the user. Its value must never be given to another user; \
             `email` counts only with `email_verified`.",
        )
        .default_text("`oid` for `entra`, else `sub`"),
        KeySpec::new(
            "role_claim",
            ValueShape::text(),
            "The claim that contains the groups or roles: a string or a list of strings. Dots lead \
             into objects, unless the whole text is the name of a claim; `scope` and `scp` are \
             split into words.",
        )
        .default_text(
            "`roles` for `generic` and `entra`, `groups` for `okta`, `permissions` for `auth0`, \
             `realm_access.roles` for `keycloak`, `hd` for `google`, `cognito:groups` for \
             `cognito`",
        ),
        KeySpec::new(
            "roles",
            ValueShape::map(shape::NOT_EMPTY, role()),
            "The role for each value of that claim. A user with several roles may use what any of \
             them allows, except for what any of them denies.",
        )
        .example("roles = { \"mcp-developers\" = \"developer\", \"mcp-ops\" = \"ops\" }"),
        KeySpec::new(
            "default_role",
            role(),
            "The role of users with a valid token that contains no value for a role. Without it \
             such a user is accepted and may use nothing.",
        ),
        KeySpec::new(
            "scopes_supported",
            scopes(),
            "The scopes that Weir announces to clients, so that they can request them.",
        )
        .default(json!([])),
        KeySpec::new(
            "scopes_required",
            scopes(),
            "The scopes that every token must contain, in `scope` or `scp`; if one is missing the \
             response is 403, which names all of them.",
        )
        .default(json!([])),
        KeySpec::new(
            "algorithms",
            algorithms,
            "The signature algorithms that are accepted. A key that does not name its own \
             algorithm is used for one only: that of its curve, or the first RSA algorithm in this \
             list.",
        )
        .default_text("all of them"),
        KeySpec::new(
            "jwks_uri",
            ValueShape::Text("https URL", shape::URL),
            "The URL of the provider's keys, for a provider without metadata that contain it.",
        ),
    ]
}
