//! Text below each command's `--help`: examples and exit codes.

pub(crate) const WEIR: &str = "\
Exit codes: 0 success, 1 a check found a problem, 2 wrong usage, 3 not authenticated, \
4 an upstream cannot be reached, 5 the response was an error, 6 denied, \
74 the output was not written, 78 invalid configuration, \
130 and 143 stopped by a signal.";

pub(crate) const SERVE: &str = "\
Examples:
  weir serve                              # at http://127.0.0.1:8642/mcp by default
  weir serve --config /etc/weir/weir.toml
  WEIR_LOG=weir=debug weir serve          # with a more detailed log";

pub(crate) const STDIO: &str = "\
Examples:
  weir stdio                              # the command in an IDE's configuration
  weir stdio --as visitor                 # with the items of that client";

pub(crate) const CHECK: &str = "\
Examples:
  weir check                              # the file, then each upstream
  weir check --offline                    # the file only
  weir check --json | jq '.upstreams[] | select(.ok | not)'

Exit code 4 if an upstream cannot be used, or is incomplete: a list of it cannot be read, or a \
file of a prompt library has a mistake and is left out. A line `note` says what a server does \
wrong, how often, and what its author has to do; it does not change the exit code.";

pub(crate) const LIST: &str = "\
Examples:
  weir list                               # items of all kinds, one per line
  weir list tools --upstream notes        # tools of one upstream; no other is started
  weir list tools --json                  # whole definitions
  weir list --as visitor                  # items that are visible to that client";

pub(crate) const EXPLAIN: &str = "\
Examples:
  weir explain prompts__greeting                # visibility for each role, with the rule
  weir explain prompts__greeting --as visitor   # why that client sees it or not
  weir explain prompts/greeting                 # by the upstream's own name, as in rules
  weir explain note:///1 --as visitor           # also a URI that no upstream lists
  weir explain notes --as visitor               # how much of an upstream
  weir explain notes__add_note --json | jq .visible

Exit code 0 if the item is visible; otherwise the code of the first reason why it is not: \
2 no upstream lists it, 4 its upstream cannot be reached, 6 a rule hides it. Without --as, it is \
visible if any role sees it. For a URI all upstreams are started, for any other name only its own.";

pub(crate) const GET: &str = "\
Examples:
  weir get prompts__greeting who=Ada
  weir get prompts__review diff=\"$(git diff)\" --json

Only the upstream that the name belongs to is started.";

pub(crate) const CALL: &str = "\
Examples:
  weir call notes__add_note text='Buy milk'
  weir call notes__slow_count to=5 delay_ms=100
  weir call notes__echo deep:='{\"a\":[1,2]}'
  weir call notes__echo --args @arguments.json
  jq -n '{text: \"x\"}' | weir call notes__add_note --args -
  weir call notes__add_note text=x --trace   # with the messages to and from the server

The arguments are checked against the tool's schema first, unless --args is given. If the tool \
reports a failure, its result is printed and the exit code is 5. A result with neither \
`content` nor `structuredContent` is printed as the server sent it, and the exit code is 5 as \
well. Only the upstream that the name belongs to is started.";

pub(crate) const READ: &str = "\
Examples:
  weir read note:///1
  weir read product:///logo.png > logo.png

If standard output is not a terminal, text and bytes are written unchanged. Only upstreams whose \
`resources` rules export the URI are started, and the first one that has it responds.";

pub(crate) const AUDIT_TAIL: &str = "\
Examples:
  weir audit tail -f                      # each request as it ends
  weir audit tail --client ci --json      # whole lines of one client";

pub(crate) const AUDIT_VERIFY: &str = "\
Examples:
  weir audit verify                       # the files of the configuration
  weir audit verify old/audit.jsonl*      # other files that follow each other

The first line that does not fit its place in the chain is reported, and the exit code is 5. The \
remaining lines do not show that lines were cut off at the end: store the last hash elsewhere to \
detect that as well.";

pub(crate) const ADD: &str = "\
Examples:
  weir add github --env GITHUB_TOKEN -- npx -y @modelcontextprotocol/server-github
  weir add files -- npx -y @modelcontextprotocol/server-filesystem ~/notes
  weir add wiki https://wiki.example.com/mcp --header \"Authorization=Bearer $TOKEN\"
  weir add notion https://mcp.notion.com/mcp --oauth   # then: weir login notion

Everything behind `--` is the program and its arguments. A relative path in them starts from the \
current folder, which becomes `cwd`. Without a configuration, one is created in the user's \
configuration folder. If the check fails, the table stays, and the exit code is that of `weir \
check`.";

pub(crate) const REMOVE: &str = "\
Examples:
  weir remove github

A copy of each changed file is kept. Comments above the table stay. The files of its secrets are \
named, and not deleted. Rules that name the upstream are reported.";

pub(crate) const ENABLE: &str = "\
Examples:
  weir enable github";

pub(crate) const DISABLE: &str = "\
Examples:
  weir disable github                     # until `weir enable github`";

pub(crate) const INIT: &str = "\
Examples:
  weir init                               # a weir.toml and a prompt to start with
  weir init --from cursor                 # the servers of Cursor, in weir.toml or added to it
  weir init --from ./mcp.json --print     # the servers of a file of any client";

pub(crate) const CONNECT: &str = "\
Examples:
  weir connect claude-code                # prints the entry, to be pasted
  weir connect vscode --scope project --write
  weir connect codex --http --key-env WEIR_KEY
  weir connect cursor --take-over         # moves its servers to Weir
  weir connect cursor --remove            # the way back";

pub(crate) const DOCTOR: &str = "\
Examples:
  weir doctor                             # every client that has a file here
  weir doctor cursor                      # one client
  weir doctor --offline                   # without starting the servers
  weir doctor --json | jq -r '.findings[] | select(.fix) | .fix'

It looks at the client's file and the entry for Weir in it, at servers that are both in the client \
and behind Weir, at the configuration, its variables and its programs as a Weir that the client \
starts finds them, at the state folder, at Weirs that run, and at the first list of each server. \
For each finding it prints what is wrong, where, and the command or edit that mends it: first what \
stops everything. It changes neither a client's file nor the configuration, and prints no secrets. \
Exit code 1 if something is to be done, 0 if not.";

pub(crate) const FLEET: &str = "\
Examples:
  weir fleet                                         # members, and what differs between them
  weir fleet --json | jq -r '.members[] | select(.draining) | .name'";

pub(crate) const FLEET_KEY: &str = "\
Examples:
  weir fleet key secrets/fleet-keys
  weir fleet key --status
  weir fleet key - | kubectl create secret generic weir-fleet --from-file=keys=/dev/stdin";

pub(crate) const LOGIN: &str = "\
Examples:
  weir login notion                       # in a browser of this machine
  weir login notion --no-browser          # in a browser elsewhere
  weir login --list                       # the sign-ins that there are";

pub(crate) const LOGOUT: &str = "\
Examples:
  weir logout notion";

pub(crate) const KEYS_ADD: &str = "\
Examples:
  weir keys add alice-laptop --role developer --expires 90d
  weir keys add ci --role reader --json | jq -r .key | gh secret set WEIR_KEY
  weir keys add bob --role developer --dry-run       # the lines, for another configuration";

pub(crate) const KEYS_LIST: &str = "\
Examples:
  weir keys list
  weir keys list --json | jq -r '.clients[] | select(.expired) | .name'";

pub(crate) const KEYS_ROTATE: &str = "\
Examples:
  weir keys rotate alice-laptop --expires 90d        # adds a second key: both are valid
  weir keys rotate alice-laptop --finish             # the first key is no longer valid";

pub(crate) const KEYS_REVOKE: &str = "\
Examples:
  weir keys revoke alice-laptop";

pub(crate) const COMPLETE: &str = "\
Examples:
  weir complete prompt notes__summarize-notes style=b
  weir complete prompt shop__describe-product tone= --given product=gauge
  weir complete template 'note:///{id}' id=";

pub(crate) const PINS: &str = "\
Examples:
  weir pins diff                          # exit code 1 if anything is different
  weir pins approve github                # everything that it lists now
  weir pins approve github/create_issue wiki/search
  weir pins list --json";

pub(crate) const STATUS: &str = "\
Examples:
  weir status                             # of the Weir that runs with ./weir.toml
  weir status --config /etc/weir/weir.toml --json
  weir status > /dev/null && echo all is well

Exit code 0 if it is ready and every upstream is up, half-open or asleep; 1 if it serves but has \
a problem, with the reason on standard error; 3 if it rejects the token; 4 if it is not running; \
78 if it is not running and the configuration has a mistake. The request goes to the listener of \
[admin].";

pub(crate) const HEALTH: &str = "\
Examples:
  weir health                             # of the Weir that runs with ./weir.toml
  weir health --live --timeout 1          # only whether it is alive
  docker inspect -f '{{.State.Health.Status}}' weir   # result of a HEALTHCHECK with it

Exit code 0 if it is ready, or with --live alive; 1 if it is alive but not ready, with the reason \
on standard error; 4 if it does not respond. The request goes to the listener of [admin], without \
a token, or if there is none, to the MCP endpoint. A mistake that was made in the configuration \
since it started does not count.";

pub(crate) const RESTART: &str = "\
Examples:
  weir restart notes                      # also if it is down, without waiting for its next attempt
  weir restart notes --grace 60           # calls in flight get a minute instead of 5 seconds

Every running Weir of the configuration starts it again: `weir serve`, and each `weir stdio` that \
a client has started. Its lists stay, and new calls wait for it. Exit code 0 if all have; 1 if one \
refused; 2 if there is no such upstream; 3 if the token is rejected; 4 if none is running.";

pub(crate) const LOGS: &str = "\
Examples:
  weir logs notes                         # the last 100 lines
  weir logs notes -f                      # and those that follow, until Ctrl-C
  weir logs notes -n 1000 | grep -i error

A line has its time (UTC), the number of the upstream's process, and behind `|` what the process \
wrote; lines without `|` are starts, ends and changes of the connection. Secrets of the upstream \
are `***`. Where several Weirs of the configuration run, each line names the process of its own. \
Exit code 2 if there is no such upstream; 3 if the token is rejected; 4 if no Weir is running, or \
with -f none any more.";

pub(crate) const RELOAD: &str = "\
Examples:
  weir reload                             # the Weir that runs with ./weir.toml
  weir reload --config /etc/weir/weir.toml --json

Exit code 0 if the configuration is active now, changed or not; 1 if it was rejected and the \
previous one stays active, with the report on standard error; 3 if the token is rejected; 4 if \
Weir is not running; 78 if it is not running and the configuration has a mistake. The request goes \
to the listener of [admin].";

pub(crate) const TOP: &str = "\
Examples:
  weir top                                # q or Ctrl-C ends it
  weir top --once > sample.txt

For each upstream and each method: completed requests per second, errors per second, and the time \
within which 50 % and 99 % of them completed, since the previous sample. `now` is the number of \
calls in flight, plus those that wait for their turn.";

pub(crate) const COMPLETIONS: &str = "\
Examples:
  weir completions bash > ~/.local/share/bash-completion/completions/weir
  weir completions zsh > ~/.zfunc/_weir
  weir completions fish > ~/.config/fish/completions/weir.fish";

pub(crate) const MAN: &str = "\
Examples:
  weir man ~/.local/share/man/man1        # then: man weir-serve";

pub(crate) const VERSION: &str = "\
Examples:
  weir version
  weir version --verbose                  # also how this program was built
  weir version --json | jq -r .version";

pub(crate) const SCHEMA: &str = "\
Examples:
  weir schema > weir.schema.json     # and, first in weir.toml: #:schema ./weir.schema.json
  weir schema --markdown | less";
