//! `weir add`: writes the table of a new upstream, and checks the upstream.

use std::path::{Path, PathBuf};

use super::{
    AS_TABLES, EditArgs, UpstreamChange, UpstreamEditor, not_editable, print_problems, table_of,
};
use crate::cli::check::{CheckRow, check_upstream, print_rows};
use crate::cli::clients::document;
use crate::cli::clients::init::secrets::SecretStore;
use crate::cli::clients::init::upstream_table::UpstreamTable;
use crate::cli::clients::init::{names, starter_comment};
use crate::cli::clients::server::{ClientAccount, ClientServer, HeaderSource, ServerTransport};
use crate::cli::clients::variables::{TranslateContext, Variables};
use crate::cli::config_edit::shown;
use crate::cli::exit::{self, Failure};
use crate::cli::loading::{config_path_to_write, options};
use crate::cli::output;
use crate::cli::output::render::sanitize_line;
use crate::cli::server::log;
use weir_config::{Config, Options, is_variable_name};
use weir_mcp::name::UpstreamName;

/// Arguments of `weir add`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the upstream: a lower-case letter, then at most 31 of a-z, 0-9 and `-`.
    name: String,
    /// The endpoint of a server on the network.
    url: Option<String>,
    /// A program that speaks MCP over standard input and output, and its arguments.
    #[arg(last = true)]
    command: Vec<String>,
    /// A variable for the program; may be given several times. `K=V` sets it: a token or password
    /// is moved to a file in `secrets` beside the configuration. `K` alone stores no value: Weir
    /// passes on the variable of its own environment, as it is at each start.
    #[arg(long, short, value_name = "K[=V]")]
    env: Vec<String>,
    /// A header to send to the URL, as `K=V` or `K: V`; may be given several times. A token is
    /// moved to a file, and `${VAR}` in a value is replaced by that variable at each start.
    #[arg(long, value_name = "K=V")]
    header: Vec<String>,
    /// The server at the URL demands OAuth: a user signs in to it with `weir login`.
    #[arg(long)]
    oauth: bool,
    /// Writes `enabled = false`, and starts nothing.
    #[arg(long)]
    disabled: bool,
    /// Only writes the table, and does not start and list the upstream.
    #[arg(long)]
    no_check: bool,
    /// The file to write to, one of the configuration's files; default: the main file.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    edit: EditArgs,
}

/// Adds the upstream. If its check fails, the table stays.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    log::start_errors_only();
    let (name, json) = (args.name.as_str(), args.edit.json);
    check_name(name)?;
    let server = server(&args)?;
    let path = config_path_to_write(args.edit.config.as_deref())?;
    let is_first = !path.exists();
    let editor = UpstreamEditor::open_or_new(path)?;
    let (file, messages) = write(&editor, &server, &args)?;
    if !json {
        messages.iter().for_each(|text| {
            output::print_stderr(&sanitize_line(&format!("  {name}: {text}")));
        });
        output::print_stderr(&format!("wrote [upstreams.{name}] into {}", shown(&file)));
    }
    let is_checked = !args.disabled && !args.no_check;
    let checked = match is_checked {
        true => Some(check_upstream(&editor.path, name, json).await),
        false => None,
    };
    let (row, failure) = match checked {
        Some(Ok(row)) if row.ok || row.incomplete => (Some(row), None),
        Some(Ok(row)) => {
            let failure = unusable(name, &row);
            (Some(row), Some(failure))
        }
        Some(Err(failure)) => (None, Some(failure)),
        None => (None, None),
    };
    let problems = editor.new_problems();
    if json {
        let change = UpstreamChange::new(name, &[file], &problems, row.as_ref());
        output::print_report(true, &change, |_| Ok(()))?;
        return failure.map_or(Ok(()), Err);
    }
    if let Some(row) = row {
        print_rows(&[row])?;
    }
    // The check prints those of the whole configuration.
    let is_usable = if is_checked { failure.is_none() } else { print_problems(&problems) };
    if is_usable {
        let effect = if args.disabled { "" } else { ", and starts the upstream" };
        output::print_stderr(&editor.next_step(effect));
    }
    if args.disabled {
        output::print_stderr(&format!("      `weir enable {name}` starts the upstream"));
    }
    if is_first {
        output::print_stderr("      `weir connect CLIENT --write` points a client at Weir");
    }
    failure.map_or(Ok(()), Err)
}

/// Writes the table and the secrets. Returns the file, and messages about the table.
fn write(
    editor: &UpstreamEditor,
    server: &ClientServer,
    args: &Args,
) -> Result<(PathBuf, Vec<String>), Failure> {
    let (name, table) = (&args.name, table_of(&args.name));
    if editor.tables.contains_key(name) {
        let files = editor.files.containing(&table, None)?;
        let places = files.iter().map(|(file, _)| file.display().to_string());
        return Err(Failure::Usage(format!(
            "there is an upstream `{name}` already, in {}: choose another name, or run `weir \
             remove {name}` first",
            places.collect::<Vec<_>>().join(" and ")
        )));
    }
    let file = match &args.file {
        None => editor.files.main().to_owned(),
        Some(file) => editor.files.find(file)?,
    };
    let beside = file.parent().unwrap_or(Path::new(""));
    let mut store = SecretStore::NewFiles(beside.to_owned(), Vec::new());
    let here = std::env::current_dir().ok();
    let variables = Variables { braces: true, ..Variables::NONE };
    let context = TranslateContext { variables, project: here.as_deref(), inputs: &[], own: &[] };
    let UpstreamTable { table: content, messages } =
        UpstreamTable::of(server, name, context, &mut store)
            .map_err(|why| Failure::Usage(format!("`{name}` cannot be added: {why}")))?;
    check_table(&file, &table.format(&content))?;
    let old = document::read(&file)?;
    let text = old.as_ref().map_or_else(starter_comment, |old| old.text.clone());
    let edited = table.add(&text, &content);
    let edited = edited.ok_or_else(|| not_editable(&file, name, AS_TABLES))?;
    let prepared = document::prepare(&file, old.as_ref(), &edited.text)?;
    // They are removed again unless the table that names them is written.
    let secrets = store.write(beside)?;
    prepared.finish()?;
    secrets.keep();
    Ok((file, messages))
}

/// Checks a table alone: its mistakes are reported before it is written.
fn check_table(file: &Path, text: &str) -> Result<(), Failure> {
    // Variables need not be set, and secrets need not be there yet.
    let options = Options { only: Some(Vec::new()), ..options(true) };
    let Err(report) = Config::parse(text, file, &options) else { return Ok(()) };
    let first = exit::errors(&report).next();
    let text = first.map(|it| format!("{}: {}; {}", it.key, it.what, it.remedy));
    Err(Failure::Usage(text.unwrap_or_default()))
}

fn unusable(name: &str, row: &CheckRow) -> Failure {
    Failure::Unreachable(match row.needs_sign_in {
        true => format!("`{name}` needs a sign-in: run `weir login {name}`"),
        false => format!(
            "`{name}` was added, but cannot be used: correct [upstreams.{name}] and run `weir \
             check`, or run `weir remove {name}`{}",
            // The state suggests it for a server that demands credentials.
            match row.state.contains("oauth") {
                true => " and add it again with --oauth",
                false => "",
            }
        ),
    })
}

// === Arguments ===

fn check_name(name: &str) -> Result<(), Failure> {
    if name.parse::<UpstreamName>().is_ok() {
        return Ok(());
    }
    let legal = names::legal(&[name.to_owned()]).concat();
    Err(Failure::Usage(format!(
        "`{name}` cannot name an upstream: a name is a lower-case letter, then at most 31 of a-z, \
         0-9 and -; `{legal}` is one"
    )))
}

/// Describes the server as a client's file would.
fn server(args: &Args) -> Result<ClientServer, Failure> {
    let name = &args.name;
    let usage = |text: String| Err(Failure::Usage(text));
    let transport = match (&args.url, args.command.split_first()) {
        (Some(_), _) if !args.env.is_empty() => {
            let text = "--env is for a program, and a URL gets headers: use --header";
            return usage(text.to_owned());
        }
        (None, Some(_)) if !args.header.is_empty() => {
            let text = "--header is for a URL, and a program gets variables: use --env";
            return usage(text.to_owned());
        }
        (None, Some(_)) if args.oauth => {
            return usage("--oauth is for a URL".to_owned());
        }
        (Some(url), Some(_)) if url.contains("://") => {
            return usage("a server has a URL or a command, not both".to_owned());
        }
        (Some(url), _) if !url.contains("://") && !url.starts_with("${") => {
            return usage(format!(
                "`{url}` is not a URL; a program stands behind two dashes: `weir add {name} -- \
                 {url}`"
            ));
        }
        (Some(url), _) => ServerTransport::Http {
            url: url.clone(),
            is_sse: false,
            headers: args.header.iter().map(|text| header(text)).collect::<Result<_, _>>()?,
            account: args.oauth.then(ClientAccount::default),
        },
        (None, Some((command, rest))) => ServerTransport::Process {
            command: command.clone(),
            args: rest.to_vec(),
            env: args.env.iter().map(|text| variable(text)).collect::<Result<_, _>>()?,
            pass_env: Vec::new(),
            cwd: folder_of_arguments(command, rest),
        },
        (None, None) => {
            return usage(format!(
                "which server is `{name}`? `weir add {name} -- COMMAND` starts a program, `weir \
                 add {name} URL` connects to a server on the network"
            ));
        }
    };
    Ok(ClientServer {
        name: name.clone(),
        transport,
        startup: None,
        call: None,
        enabled: !args.disabled,
        allow: None,
        deny: Vec::new(),
        not_imported: Vec::new(),
    })
}

/// Returns the current folder if the program or an argument is a path that starts there.
fn folder_of_arguments(command: &str, arguments: &[String]) -> Option<String> {
    let here = std::env::current_dir().ok()?;
    let is_here =
        |text: &str| !text.is_empty() && Path::new(text).is_relative() && here.join(text).exists();
    let command = Some(command).filter(|command| command.contains('/'));
    let is_relative = arguments.iter().map(String::as_str).chain(command).any(is_here);
    is_relative.then(|| here.display().to_string())
}

/// Parses `--env`. Without a value, the text refers to the variable of Weir's environment.
fn variable(text: &str) -> Result<(String, String), Failure> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, value.to_owned()),
        None => (text, format!("${{{text}}}")),
    };
    match is_variable_name(name) {
        true => Ok((name.to_owned(), value)),
        // The text may be the secret itself.
        false => Err(Failure::Usage(
            "--env is NAME=VALUE or NAME, and a name has letters, digits and _".to_owned(),
        )),
    }
}

/// Parses `--header`, also as HTTP writes a header.
fn header(text: &str) -> Result<(String, HeaderSource), Failure> {
    match text.split_once(['=', ':']) {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), HeaderSource::Text(value.trim().to_owned())))
        }
        _ => Err(Failure::Usage(
            "--header is NAME=VALUE, such as --header \"Authorization=Bearer TOKEN\"".to_owned(),
        )),
    }
}
