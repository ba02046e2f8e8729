//! Viewers that are no clients of the configuration: a role, or a user of an identity provider.
//!
//! The role of a user is in no file. A running Weir remembers the one that the user's last token
//! was mapped to; from the user's groups the configuration gives it.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::report::{Statement, StatementTopic};
use crate::admin::users::{SeenRole, UserQuery, UserReport};
use crate::cli::exit::Failure;
use crate::cli::instance::admin_client::{AdminClient, RunningInstance};
use crate::cli::loading::{ConfigSource, unknown_client};
use crate::cli::output::render::sanitize_line;
use weir_access::policy::{self, role::NO_ROLE};
use weir_config::{Config, ProviderConfig, nearest};

/// Options that name a role, or the groups of a user.
#[derive(Debug, Default, clap::Args)]
pub(super) struct UserArgs {
    /// Explains for this role; of several, for a client that has all of them. With
    /// `--as <provider>/<user>`, for that user with this role.
    #[arg(long, value_name = "ROLE", value_delimiter = ',', conflicts_with = "groups")]
    role: Vec<String>,
    /// Explains for a user whose token has these groups, which the configuration maps to roles; the
    /// provider is that of `--as`, or the only one. A group whose name contains a comma is given
    /// by itself; the option can be repeated.
    #[arg(long, value_name = "GROUPS")]
    groups: Vec<String>,
}

impl UserArgs {
    pub(super) fn is_empty(&self) -> bool {
        self.role.is_empty() && self.groups.is_empty()
    }
}

/// Viewer with the roles that it has, and the reasons.
pub(super) struct Viewer {
    /// The viewer in a sentence.
    pub(super) label: String,
    /// Name of the user, if it is one.
    pub(super) user: Option<String>,
    pub(super) roles: BTreeSet<Arc<str>>,
    pub(super) statements: Vec<Statement>,
}

/// Returns the viewer that the arguments name; `None` if it is a client of the configuration, or
/// each role.
pub(super) async fn find(
    args: &UserArgs,
    named: Option<&str>,
    config: &Config,
    source: &ConfigSource,
) -> Result<Option<Viewer>, Failure> {
    let is_client = |name: &str| {
        name == policy::ANONYMOUS || config.clients.iter().any(|client| client.name == name)
    };
    let user = match named {
        Some(name) if is_client(name) && !args.is_empty() => {
            let text = format!(
                "the role of {name} is in the configuration: --role and --groups are for users of \
                 an identity provider"
            );
            return Err(Failure::Usage(text));
        }
        Some(name) if is_client(name) => return Ok(None),
        Some(name) => Some(User::parse(name, config, !args.groups.is_empty())?),
        None if args.groups.is_empty() => None,
        None => Some(User::of_only_provider(config)?),
    };
    let (roles, mut statements) = match &user {
        _ if !args.role.is_empty() => given_roles(&args.role, config)?,
        Some(user) if !args.groups.is_empty() => user.mapped_roles(&args.groups, config),
        Some(user) => user.seen_roles(config, source).await?,
        None => return Ok(None),
    };
    statements.extend(user.as_ref().and_then(|user| user.blocked(config)));
    let label = match &user {
        Some(user) => user.label(),
        None => format!("the role {}", joined(&roles)),
    };
    let user = user.filter(|user| !user.name.is_empty()).map(|user| user.label());
    Ok(Some(Viewer { label, user, roles, statements }))
}

/// User of an identity provider.
struct User<'c> {
    provider: &'c ProviderConfig,
    /// Name at the provider; empty for a user of whom only the groups are known.
    name: String,
}

impl<'c> User<'c> {
    /// Parses `<provider>/<user>`, or the name of a provider alone where that is enough.
    fn parse(text: &str, config: &'c Config, is_any_user: bool) -> Result<Self, Failure> {
        let (name, user) = text.split_once('/').unwrap_or((text, ""));
        let known = || config.providers.iter().map(|provider| provider.tokens.name.as_str());
        let provider = config.providers.iter().find(|provider| provider.tokens.name == name);
        match (provider, text.contains('/')) {
            (Some(provider), _) if !user.is_empty() || is_any_user => {
                Ok(Self { provider, name: user.to_owned() })
            }
            (Some(_), _) => Err(Failure::Usage(format!(
                "{name} is an identity provider: name a user of it as {name}/USER, or add --groups"
            ))),
            (None, false) => Err(unknown_client(config, text)),
            (None, true) => {
                let known: Vec<_> = match nearest(name, known()) {
                    Some(near) => vec![near],
                    None => known().collect(),
                };
                let hint = match known[..] {
                    [] => "which has none".to_owned(),
                    _ => format!("which has {}", known.join(", ")),
                };
                let name = sanitize_line(name);
                let text = format!("no identity provider `{name}` in the configuration, {hint}");
                Err(Failure::Unauthenticated(text))
            }
        }
    }

    fn of_only_provider(config: &'c Config) -> Result<Self, Failure> {
        match &config.providers[..] {
            [provider] => Ok(Self { provider, name: String::new() }),
            [] => {
                let text = "--groups is for users of an identity provider, and this configuration \
                            has none: see [auth.oidc.<name>]";
                Err(Failure::Usage(text.to_owned()))
            }
            several => {
                let names: Vec<_> =
                    several.iter().map(|provider| provider.tokens.name.as_str()).collect();
                let text = format!(
                    "--groups needs the identity provider, of {}: add --as PROVIDER/USER",
                    names.join(", ")
                );
                Err(Failure::Usage(text))
            }
        }
    }

    fn label(&self) -> String {
        let provider = &self.provider.tokens.name;
        match self.name.is_empty() {
            true => format!("a user of {provider} with these groups"),
            false => format!("{provider}/{}", self.name),
        }
    }

    /// Returns the roles that the configuration maps these groups to.
    fn mapped_roles(
        &self,
        groups: &[String],
        config: &Config,
    ) -> (BTreeSet<Arc<str>>, Vec<Statement>) {
        let settings = &self.provider.tokens;
        let groups: Vec<&str> = groups
            .iter()
            // The name of a group in a directory can contain commas.
            .flat_map(|text| match settings.roles.contains_key(text) {
                true => vec![text.as_str()],
                false => text.split(',').filter(|group| !group.is_empty()).collect(),
            })
            .collect();
        let mut statements = Vec::new();
        for group in &groups {
            statements.push(match settings.roles.get(*group) {
                Some(role) => {
                    let place = self.place(config, &["roles", group]);
                    let text = format!("the group `{group}` gives the role {role}{}", at(&place));
                    Statement { place, ..StatementTopic::Client.good(text) }
                }
                None => StatementTopic::Client.good(format!("the group `{group}` gives no role")),
            });
        }
        let roles = settings.roles_of(&groups);
        if !groups.iter().any(|group| settings.roles.contains_key(*group)) {
            statements.push(self.without_groups(config));
        }
        (roles, statements)
    }

    /// States the role of a user without a group that gives one.
    fn without_groups(&self, config: &Config) -> Statement {
        let settings = &self.provider.tokens;
        match &settings.default_role {
            Some(role) => {
                let place = self.place(config, &["default_role"]);
                let text = format!("without such a group the role is {role}{}", at(&place));
                Statement { place, ..StatementTopic::Client.good(text) }
            }
            None => StatementTopic::Client.bad(format!(
                "no value of the claim `{}` gives a role: add one to `roles` under \
                 [auth.oidc.{}], or a `default_role`",
                settings.role_claim, settings.name
            )),
        }
    }

    /// Returns the roles that the running Weir has seen last.
    async fn seen_roles(
        &self,
        config: &Config,
        source: &ConfigSource,
    ) -> Result<(BTreeSet<Arc<str>>, Vec<Statement>), Failure> {
        let label = self.label();
        let running = connect(config, source).await.map_err(|failure| match failure {
            Failure::NotRunning(_) => Failure::NotRunning(format!(
                "no Weir of this configuration runs, and only a running one knows the role of \
                 {}: start it, or give the user's groups with --groups, or a role with --role",
                sanitize_line(&label)
            )),
            failure => failure,
        })?;
        let query = UserQuery { user: label.clone() };
        let UserReport { seen, similar } = running.user(&query).await?;
        let Some(SeenRole { role, at, is_current }) = seen else {
            return Err(self.unseen(&running, similar.as_deref(), config));
        };
        let roles: BTreeSet<Arc<str>> =
            role.split('+').filter(|name| *name != NO_ROLE).map(Arc::from).collect();
        let mut statements = vec![match roles.is_empty() {
            true => StatementTopic::Client.bad(format!("{label} had no role at {at}")),
            false => StatementTopic::Client.good(format!("{label} had the role {role} at {at}")),
        }];
        if roles.is_empty() {
            statements.push(self.without_groups(config));
        }
        if !is_current {
            let text = format!(
                "[auth.oidc.{}] has changed since: the next request shows the role that it gives \
                 now, and so does --groups",
                self.provider.tokens.name
            );
            statements.push(StatementTopic::Client.good(text));
        }
        let is_gone = |role: &Arc<str>| !config.roles.contains_key(&**role);
        let are_all_gone = roles.iter().all(is_gone);
        statements.extend(roles.iter().filter(|role| is_gone(role)).map(|role| {
            let text = format!("the configuration has no role {role} any more");
            Statement { good: !are_all_gone, ..StatementTopic::Client.bad(text) }
        }));
        Ok((roles, statements))
    }

    /// Failure for a user whom the running Weir has not seen.
    fn unseen(&self, running: &RunningInstance, similar: Option<&str>, config: &Config) -> Failure {
        let label = sanitize_line(&self.label());
        if self.blocked(config).is_some() {
            return Failure::Unauthenticated(format!(
                "{label} is refused: `blocked` under [auth.oidc.{}] names this user",
                self.provider.tokens.name
            ));
        }
        let hint = match similar {
            // A hidden character is shown as an escape.
            Some(name) => format!("; a user {name:?} was seen"),
            None => String::new(),
        };
        let elsewhere = match &running.status.fleet {
            Some(fleet) if fleet.members > 1 => {
                " at this replica (another one may have seen the user)"
            }
            _ => "",
        };
        Failure::Unauthenticated(format!(
            "{label} was not seen since {}{elsewhere}{hint}: have the user connect, look for a \
             refused token with `weir audit tail`, or give the user's groups with --groups",
            running.status.started
        ))
    }

    fn blocked(&self, config: &Config) -> Option<Statement> {
        let is_blocked = !self.name.is_empty() && self.provider.blocked.contains(&self.name);
        is_blocked.then(|| {
            let place = self.place(config, &["blocked"]);
            let text =
                format!("{} is refused: `blocked` names this user{}", self.label(), at(&place));
            Statement { place, ..StatementTopic::Client.bad(text) }
        })
    }

    fn place(&self, config: &Config, path: &[&str]) -> Option<String> {
        let path = [&["auth", "oidc", &*self.provider.tokens.name], path].concat();
        config.rule_locations.of(&path).map(str::to_owned)
    }
}

fn given_roles(
    given: &[String],
    config: &Config,
) -> Result<(BTreeSet<Arc<str>>, Vec<Statement>), Failure> {
    let roles: BTreeSet<Arc<str>> =
        given.iter().flat_map(|text| text.split('+')).map(Arc::from).collect();
    let known = || config.roles.keys().map(String::as_str).filter(|it| !it.contains(':'));
    for role in &roles {
        if !known().any(|known| known == &**role) {
            let hint = match nearest(role, known()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("it has {}", known().collect::<Vec<_>>().join(", ")),
            };
            let role = sanitize_line(role);
            return Err(Failure::Usage(format!("no role `{role}` in the configuration; {hint}")));
        }
    }
    let text = format!("the role {} is given", joined(&roles));
    Ok((roles, vec![StatementTopic::Client.good(text)]))
}

fn joined(roles: &BTreeSet<Arc<str>>) -> String {
    roles.iter().map(|role| &**role).collect::<Vec<_>>().join("+")
}

fn at(place: &Option<String>) -> String {
    place.as_ref().map(|place| format!(" ({place})")).unwrap_or_default()
}

/// Connects to the Weir that runs with this configuration.
pub(super) async fn connect(
    config: &Config,
    source: &ConfigSource,
) -> Result<RunningInstance, Failure> {
    // A demonstration has no configuration file.
    let file = source.file().ok_or(Failure::NotRunning(String::new()))?;
    AdminClient::new(&config.admin, &config.state, file)?.connect().await
}
