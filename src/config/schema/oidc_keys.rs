//! The keys of `[auth.oidc.<name>]`.

use serde_json::json;

use super::Key;
use super::shape::{self, Shape};
use crate::policy::tokens::{Algorithm, Preset};

pub(super) fn providers() -> Key {
    Key::new(
        "oidc",
        Shape::map(shape::PLAIN_NAME, Shape::table(provider())),
        "An identity provider whose access tokens are accepted, as `Authorization: Bearer <token>` like a key. \
         `server.public_url` must be set. See [identity providers](identity-providers.md).",
    )
    .example(
        "[auth.oidc.corp]\nissuer = \"https://id.example.com/realms/corp\"\npreset = \"keycloak\"\n\
         audience = [\"https://mcp.example.com/mcp\"]\nroles = { \"mcp-users\" = \"local\" }",
    )
}

fn provider() -> Vec<Key> {
    let role = || Shape::Text("name of a role", shape::PLAIN_NAME);
    let scopes = || Shape::list(Shape::Text("scope", shape::SCOPE));
    let mut audience = Shape::list(Shape::text());
    let mut algorithms = Shape::list(Shape::choice(&Algorithm::NAMED));
    for list in [&mut audience, &mut algorithms] {
        if let Shape::List { count, .. } = list {
            *count = (1, None);
        }
    }
    vec![
        Key::new(
            "issuer",
            Shape::Text("https URL", shape::ISSUER),
            "The provider, exactly as its tokens say it in `iss`, a slash at the end included. `http://` is accepted on \
             this machine only. The provider's metadata and its keys are found from here.",
        )
        .required(),
        Key::new(
            "audience",
            audience,
            "Whom tokens have to be for: one of these has to be in `aud`, exactly. Usually the URL of the MCP endpoint, \
             or the identifier that Weir is registered under at the provider.",
        )
        .required(),
        Key::new(
            "preset",
            Shape::choice(&Preset::NAMED),
            "The product: it says which claims name the user and the roles, and how access tokens are told from others.",
        )
        .or("generic"),
        Key::new(
            "user_claim",
            Shape::text(),
            "The claim that names the user. It must never be given to somebody else; `email` counts only with \
             `email_verified`.",
        )
        .or_else("`oid` for `entra`, else `sub`"),
        Key::new(
            "role_claim",
            Shape::text(),
            "The claim that holds the groups or roles: a string or a list of strings. Dots lead into objects, unless \
             the whole is the name of a claim; `scope` and `scp` are taken word by word.",
        )
        .or_else(
            "`roles` for `generic` and `entra`, `groups` for `okta`, `permissions` for `auth0`, `realm_access.roles` \
             for `keycloak`, `hd` for `google`, `cognito:groups` for `cognito`",
        ),
        Key::new(
            "roles",
            Shape::map(shape::NOT_EMPTY, role()),
            "Which value of that claim gives which role. Who has several roles may use what any of them allows, but for \
             what any of them denies.",
        )
        .example("roles = { \"mcp-developers\" = \"developer\", \"mcp-ops\" = \"ops\" }"),
        Key::new(
            "default_role",
            role(),
            "The role of whoever has a good token and no value that gives a role. Without it such a user is let in and \
             may use nothing.",
        ),
        Key::new(
            "scopes_supported",
            scopes(),
            "The scopes that clients are told of, so that they can ask for them.",
        )
        .or(json!([])),
        Key::new(
            "scopes_required",
            scopes(),
            "The scopes that every token must have been granted, in `scope` or `scp`; without one of them the answer is \
             403, with all of them named.",
        )
        .or(json!([])),
        Key::new(
            "algorithms",
            algorithms,
            "How tokens may be signed. A key that does not say its own algorithm is good for one only: that of its \
             curve, or the first RSA one here.",
        )
        .or_else("all of them"),
        Key::new(
            "jwks_uri",
            Shape::Text("https URL", shape::URL),
            "Where the provider's keys are, if it has no metadata that say so.",
        ),
    ]
}
