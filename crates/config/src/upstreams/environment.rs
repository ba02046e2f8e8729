//! Environment of the processes of upstreams: what they get of Weir's own.

use crate::keys::shape::{self, ValueShape};
use crate::keys::{Key, settings, strings, variant};
use crate::reader::report::ValueError;
use crate::reader::table_reader::{Parsed, SpannedValue};
use crate::reader::value;
use weir_upstream::connect::LoginPath;

settings! {
    /// Environment of the processes of all upstreams.
    pub(crate) struct EnvironmentKeys {
        /// Variables to pass on to the `command` of each upstream, in addition to those of its own
        /// `pass_env`, and written like these. Each server gets them, so a token belongs in the
        /// table of the one upstream that needs it.
        ///
        /// ```toml
        /// pass_env = ["NODE_OPTIONS"]
        /// ```
        pass_env: Vec<String> = Vec::new(), passed_variables();
        /// Use of the `PATH` of the user's login shell for each `command`: a client that is started
        /// from a desktop lacks the folders of version managers in its own. `auto` asks the shell
        /// if a client has started Weir, and for commands such as `weir check`, where Weir's own
        /// `PATH` has only the system's folders or does not lead to the `command`. `always` asks it
        /// in any case, also for `weir serve`. `never` does not ask it. The shell is that of the
        /// user database. It gets 5 s, and its answer is kept in the state folder, where it serves
        /// at the next start until the shell has been asked again. The folders of Weir's own `PATH`
        /// follow those of the shell. Where `env` or `pass_env` sets `PATH`, the shell is not
        /// asked.
        login_path: LoginPath = LoginPath::Auto, variant();
    }
}

/// List of names and families of variables.
pub(super) fn passed_variables() -> Key<Vec<String>> {
    strings(ValueShape::Text("name of a variable", shape::PASSED_VARIABLE), passed_variable)
}

/// Parses the name of a variable, or the beginning of the names of a family.
fn passed_variable(v: &SpannedValue<'_>) -> Parsed<String> {
    let name = value::string(v)?;
    let family = name.strip_suffix('*').unwrap_or(name);
    if family.is_empty() && !name.is_empty() {
        let what = "this would give a server every variable, and so the tokens of all others";
        let remedy = "name the variables that it needs, or the beginning of several like UV_*";
        return Err(ValueError::new(what, remedy));
    }
    match family.is_empty() || family.contains(['=', '\0', '*']) {
        true => {
            let remedy = "write a name like NODE_OPTIONS, or the beginning of several like UV_*";
            Err(ValueError::new("this cannot name a variable", remedy))
        }
        false => Ok(name.to_owned()),
    }
}
