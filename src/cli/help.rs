//! What stands below each command's `--help`: examples, and the exit codes.

pub(super) const WEIR: &str = "\
Exit codes: 0 done, 1 something is not as it should be, 2 wrong usage, 3 not authenticated, 4 an upstream \
cannot be reached, 5 the answer was an error, 6 denied, 74 the output could not be written, 78 wrong \
configuration, 130 and 143 stopped by a signal.";

pub(super) const SERVE: &str = "\
Examples:
  weir serve                              # at http://127.0.0.1:8642/mcp, unless configured
  weir serve --config /etc/weir/weir.toml
  WEIR_LOG=weir=debug weir serve          # tell more in the log";

pub(super) const STDIO: &str = "\
Examples:
  weir stdio                              # as an IDE's configuration names it
  weir stdio --as visitor                 # see what that client sees";

pub(super) const CHECK: &str = "\
Examples:
  weir check                              # the file, then each upstream; exit code 4 if one is down
  weir check --offline                    # the file only
  weir check --json | jq '.upstreams[] | select(.ok | not)'";

pub(super) const LIST: &str = "\
Examples:
  weir list                               # prompts, a line each
  weir list tools --upstream notes        # what one upstream has; no other is started
  weir list tools --json                  # whole definitions
  weir list --as visitor                  # what that client sees";

pub(super) const EXPLAIN: &str = "\
Examples:
  weir explain house__greeting                  # who sees it: each role, and by which rule
  weir explain house__greeting --as visitor     # why that client does or does not
  weir explain house/greeting                   # by the upstream's own name, as in rules
  weir explain note:///1 --as visitor           # also a URI that nobody lists
  weir explain notes --as visitor               # how much of an upstream
  weir explain notes__add_note --json | jq .visible

Exit code 0 if it is visible; else that of the first reason why it is not: 2 nobody lists it, 4 its upstream \
cannot be reached, 6 a rule hides it. Without --as, it is visible if any role sees it. For a URI all upstreams \
are started, for anything else only its own.";

pub(super) const GET: &str = "\
Examples:
  weir get house__greeting who=Ada
  weir get house__review diff=\"$(git diff)\" --json

Only the upstream that the name belongs to is started.";

pub(super) const CALL: &str = "\
Examples:
  weir call notes__add_note text='Buy milk'
  weir call notes__slow_count to=5 delay_ms=100
  weir call notes__echo deep:='{\"a\":[1,2]}'
  weir call notes__echo --args @arguments.json
  jq -n '{text: \"x\"}' | weir call notes__add_note --args -

What the tool takes is checked first, unless --args is given. A tool that answers that it failed: its \
answer is printed, and the exit code is 5. Only the upstream that the name belongs to is started.";

pub(super) const READ: &str = "\
Examples:
  weir read note:///1
  weir read product:///logo.png > logo.png

Where standard output is no terminal, text and bytes are written exactly as they are. Only upstreams \
whose `resources` rules let the URI out are started, and the first that has it answers.";

pub(super) const AUDIT_TAIL: &str = "\
Examples:
  weir audit tail -f                      # each request as it ends
  weir audit tail --client ci --json      # whole lines, of one client";

pub(super) const AUDIT_VERIFY: &str = "\
Examples:
  weir audit verify                       # the files of the configuration
  weir audit verify old/audit.jsonl*      # others that follow each other

The first line that does not belong where it stands is told, and the exit code is 5. Lines that are cut \
off at the end are not missed by what is left: keep the last hash elsewhere to find that, too.";

pub(super) const INIT: &str = "\
Examples:
  weir init                               # a weir.toml and a prompt to begin with
  weir init --from cursor                 # the servers that Cursor has, in weir.toml
  weir init --from ./mcp.json --print     # those of a file, whichever client's it is";

pub(super) const CONNECT: &str = "\
Examples:
  weir connect claude-code                # the entry, to be pasted
  weir connect vscode --scope project --write
  weir connect codex --http --key-env WEIR_KEY";

pub(super) const KEYS_ADD: &str = "\
Examples:
  weir keys add alice-laptop --role developer --expires 90d
  weir keys add ci --role reader --json | jq -r .key | gh secret set WEIR_KEY
  weir keys add bob --role developer --dry-run       # the lines, for somebody else's configuration";

pub(super) const KEYS_LIST: &str = "\
Examples:
  weir keys list
  weir keys list --json | jq -r '.clients[] | select(.expired) | .name'";

pub(super) const KEYS_ROTATE: &str = "\
Examples:
  weir keys rotate alice-laptop --expires 90d        # a second key: both are good
  weir keys rotate alice-laptop --finish             # the first is good no more";

pub(super) const KEYS_REVOKE: &str = "\
Examples:
  weir keys revoke alice-laptop";

pub(super) const COMPLETE: &str = "\
Examples:
  weir complete prompt notes__summarize-notes style=b
  weir complete prompt shop__describe-product tone= --given product=gauge
  weir complete template 'note:///{id}' id=";

pub(super) const PINS: &str = "\
Examples:
  weir pins diff                          # exit code 1 if anything is different
  weir pins approve github                # all that it lists now
  weir pins approve github/create_issue wiki/search
  weir pins list --json";

pub(super) const STATUS: &str = "\
Examples:
  weir status                             # of the Weir that runs with ./weir.toml
  weir status --config /etc/weir/weir.toml --json
  weir status > /dev/null && echo all is well

Exit code 0 if it is ready and every upstream is up, half-open or asleep; 1 if it serves and something is wrong, with \
the reason on standard error; 3 if it does not take the token; 4 if nothing runs there. It is asked over the listener of [admin].";

pub(super) const HEALTH: &str = "\
Examples:
  weir health                             # of the Weir that runs with ./weir.toml
  weir health --live --timeout 1          # only whether it is alive
  docker inspect -f '{{.State.Health.Status}}' weir   # what a HEALTHCHECK with it has found

Exit code 0 if it is ready, or with --live alive; 1 if it is alive and not ready, and why is told on standard error; 4 if \
nothing answers. It is asked over the listener of [admin], without a token, or where there is none, at its endpoint. A \
mistake in the configuration since it started does not count.";

pub(super) const RELOAD: &str = "\
Examples:
  weir reload                             # the Weir that runs with ./weir.toml
  weir reload --config /etc/weir/weir.toml --json

Exit code 0 if the configuration holds now, whether it is another one or not; 1 if it is refused and the former one holds, with the \
report on standard error; 3 if it does not take the token; 4 if nothing runs there. It is asked over the listener of [admin].";

pub(super) const TOP: &str = "\
Examples:
  weir top                                # q or Ctrl-C ends it
  weir top --once > sample.txt

For each upstream and each method: how many a second are over, how many of them failed, and which time half and 99 \
in 100 of them did not pass, since the line before. `now` is calls under way, and those that wait for their turn.";

pub(super) const COMPLETIONS: &str = "\
Examples:
  weir completions bash > ~/.local/share/bash-completion/completions/weir
  weir completions zsh > ~/.zfunc/_weir
  weir completions fish > ~/.config/fish/completions/weir.fish";

pub(super) const VERSION: &str = "\
Examples:
  weir version
  weir version --json | jq -r .version";

pub(super) const SCHEMA: &str = "\
Examples:
  weir schema > weir.schema.json     # and, first in weir.toml: #:schema ./weir.schema.json
  weir schema --markdown | less";
