//! Keys of `[admin]`.

use super::KeySpec;
use super::shape::{self, ValueShape};
use crate::config::AdminConfig;

pub(super) fn admin() -> KeySpec {
    let default = AdminConfig::default();
    let keys = vec![
        KeySpec::new(
            "enabled",
            ValueShape::Boolean,
            "With `false` `weir serve` opens no admin listener. Then `weir status`, `weir top` and \
             `weir reload` cannot reach it.",
        )
        .default(default.enabled),
        KeySpec::new(
            "listen",
            ValueShape::Text("IP address and port", shape::SOCKET),
            "The address and port to listen on. If the key is not set and another process uses the \
             default port, Weir runs without the admin listener; an address that is set must be \
             free. On any address other than a loopback address everything except `/healthz` and \
             the one word of `/readyz` requires the token.",
        )
        .default_text("`127.0.0.1:9464`, if it is free")
        .example("listen = \"0.0.0.0:9464\""),
        KeySpec::new(
            "token",
            ValueShape::Secret(shape::ADMIN_TOKEN),
            "The token that `/status`, `/limits` and `/reload` require, and on other than loopback \
             addresses also `/metrics` and `/readyz?verbose`, as `Authorization: Bearer <token>`.",
        )
        .default_text(
            "generated at the first start and stored in `admin-token` under `[state]`, readable by \
             its owner only",
        )
        .example("token = { file = \"/run/secrets/weir-admin\" }"),
    ];
    KeySpec::new(
        "admin",
        ValueShape::table(keys),
        "The admin listener of `weir serve`: health, metrics, status.",
    )
}
