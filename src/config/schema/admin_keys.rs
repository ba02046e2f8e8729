//! The keys of `[admin]`.

use super::Key;
use super::shape::{self, Shape};
use crate::config::Admin;

pub(super) fn admin() -> Key {
    let default = Admin::default();
    let keys = vec![
        Key::new(
            "enabled",
            Shape::Boolean,
            "Whether `weir serve` listens for operators at all. Without it `weir status`, `weir top` and `weir reload` have \
             nobody to ask.",
        )
        .or(default.enabled),
        Key::new(
            "listen",
            Shape::Text("IP address and port", shape::SOCKET),
            "The address and port to listen on. Where it is not written and somebody else has the default, Weir \
             serves without; one that is written has to be free. On anything but a loopback address all but \
             `/healthz` and the one word of `/readyz` is for whoever shows the token.",
        )
        .or_else("`127.0.0.1:9464`, if it is free")
        .example("listen = \"0.0.0.0:9464\""),
        Key::new(
            "token",
            Shape::Secret(shape::ADMIN_TOKEN),
            "What `/status`, `/limits` and `/reload` have to be shown, and on other than loopback addresses `/metrics` \
             and `/readyz?verbose`, as `Authorization: Bearer <token>`.",
        )
        .or_else("made at the first start and kept in `admin-token` under `[state]`, for its owner only")
        .example("token = { file = \"/run/secrets/weir-admin\" }"),
    ];
    Key::new(
        "admin",
        Shape::table(keys),
        "Where operators look at a running `weir serve`: health, metrics, status.",
    )
}
