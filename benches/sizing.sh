#!/usr/bin/env bash
# Measures what docs/sizing.md says: memory, file descriptors, disk and processor time of `weir serve`.
#
# Usage: benches/sizing.sh WEIR EXAMPLES
#   WEIR      the program, of a release build
#   EXAMPLES  the folder of the example servers
# It needs curl and jq, and takes less than a minute.
set -euo pipefail
weir=$(realpath "$1") examples=$(realpath "$2")
folder=$(mktemp -d)
cd "$folder"
endpoint=127.0.0.1:18642 server=127.0.0.1:18643 pids=()

end() {
    kill "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    pids=()
}
trap 'end; rm -rf "$folder"' EXIT

# Starts Weir with these further tables, and waits until all upstreams are up.
start() {
    {
        printf '[server]\nlisten = "%s"\nper_client = { sessions = 500, streams = 20 }\n' "$endpoint"
        printf '[admin]\nlisten = "127.0.0.1:0"\n[state]\ndir = "state"\n'
        cat
    } >weir.toml
    "$weir" serve >weir.log 2>&1 &
    pids+=($!)
    until "$weir" status --json >status.json 2>/dev/null; do sleep 0.2; done
    # What a start leaves behind is freed.
    sleep 3
}

# Prints a figure of the process: memory in bytes, files, or cpu_seconds.
usage() { "$weir" status --json | jq ".usage.$1"; }

# Prints the growth of a figure per unit, in units of `scale`.
growth() { jq -n "((($2) - ($1)) / ($3) / ($4) * 10 | round) / 10"; }

# Writes a configuration of curl that sends a body this many times over one connection.
repeat() {
    for ((at = 0; at < $1; at++)); do
        [ "$at" = 0 ] || echo next
        printf 'url = "http://%s/mcp"\ndata = "@%s"\noutput = "/dev/null"\n' "$endpoint" "$2"
        printf 'dump-header = "-"\n'
        printf 'header = "Content-Type: application/json"\n'
        printf 'header = "Accept: application/json, text/event-stream"\n'
        printf 'header = "%s"\n' "${@:3}"
    done
}

initialize='{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",
"capabilities":{},"clientInfo":{"name":"sizing","version":"1"}}}'
echo "$initialize" >initialize.json
modern='"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",
"io.modelcontextprotocol/clientCapabilities":{},
"io.modelcontextprotocol/clientInfo":{"name":"sizing","version":"1"}}'
headers=("MCP-Protocol-Version: 2026-07-28" "Mcp-Method: prompts/get" "Mcp-Name: house__hello")
echo '{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"house__hello",'"$modern"'}}' \
    >get.json
mkdir prompts
printf -- '---\ndescription: Says hello.\n---\nHello.\n' >prompts/hello.md
library='[upstreams.house]
prompts_dir = "prompts"
'

echo "== idle, without upstreams but a prompt library"
start <<<"$library"
idle=$(usage memory) idle_files=$(usage files)
echo "memory: $(jq -n "$idle / 1048576 | round") MiB; file descriptors: $idle_files"

echo "== sessions of clients before 2026-07-28"
repeat 1000 initialize.json >curl.conf
curl -s -K curl.conf >headers.txt
before=$(usage memory)
for _ in 1 2 3 4; do curl -s -K curl.conf >headers.txt; done
echo "memory per session: $(growth "$before" "$(usage memory)" 4000 1024) KiB, of \
$(jq .sessions <<<"$("$weir" status --json)") sessions"
echo "file descriptors of all: $(($(usage files) - idle_files))"

echo "== sessions with an open stream each"
files=$(usage files)
curl -s -K curl.conf >ids.txt
ids=$(grep -i '^mcp-session-id' ids.txt | tr -d '\r' | cut -d' ' -f2 | sed -n 1,200p)
before=$(usage memory)
for id in $ids; do
    curl -sN "http://$endpoint/mcp" -H "Mcp-Session-Id: $id" -H 'Accept: text/event-stream' \
        -H 'MCP-Protocol-Version: 2025-11-25' >/dev/null &
    pids+=($!)
done
until [ "$("$weir" status --json | jq .streams)" = 200 ]; do sleep 0.2; done
echo "memory per stream, with its connection: $(growth "$before" "$(usage memory)" 200 1024) KiB"
echo "file descriptors per stream: $(growth "$files" "$(usage files)" 200 1)"
end

echo "== upstreams over HTTP"
"$examples/modern_http" --listen "$server" >server.log 2>&1 &
sleep 0.5
other=$!
start < <(
    echo "$library"
    for ((at = 0; at < 50; at++)); do
        printf '[upstreams.u%d]\nurl = "http://%s/mcp"\n' "$at" "$server"
    done
)
pids+=("$other")
until [ "$("$weir" status --json | jq '[.upstreams[] | select(.state == "up")] | length')" = 51 ]; do
    sleep 0.2
done
echo "memory per upstream: $(growth "$idle" "$(usage memory)" 50 1024) KiB"
echo "file descriptors per upstream: $(growth "$idle_files" "$(usage files)" 50 1)"
end

echo "== upstreams over stdio"
start < <(
    echo "$library"
    for ((at = 0; at < 50; at++)); do
        printf '[upstreams.u%d]\ncommand = "%s"\n' "$at" "$examples/legacy_stdio"
    done
)
until [ "$("$weir" status --json | jq '[.upstreams[] | select(.state == "up")] | length')" = 51 ]; do
    sleep 0.2
done
echo "memory per upstream in Weir: $(growth "$idle" "$(usage memory)" 50 1024) KiB"
echo "file descriptors per upstream: $(growth "$idle_files" "$(usage files)" 50 1)"
reapers=$(pgrep -P "${pids[0]}")
echo "processes of Weir's own beside the servers: $(wc -w <<<"$reapers")"
for pid in $reapers; do
    awk '/^Pss:/ { print $2 }' "/proc/$pid/smaps_rollup"
done | jq -s '"memory of each, without shared pages: \(add / length | round) KiB"' -r
end

echo "== calls"
start < <(
    echo "$library"
    printf '[audit]\nenabled = true\n'
)
repeat 1000 get.json "${headers[@]}" >curl.conf
curl -s -K curl.conf >headers.txt
bytes=$(stat -c %s state/audit.jsonl) cpu=$(usage cpu_seconds)
for ((turn = 0; turn < 10; turn++)); do curl -s -K curl.conf >headers.txt; done
sleep 1.5
echo "audit log per 1,000 calls: $(growth "$bytes" "$(stat -c %s state/audit.jsonl)" 10 1024) KiB"
echo "processor time per call: $(growth "$cpu" "$(usage cpu_seconds)" 10000 0.000001) µs"
echo "failed calls: $("$weir" status --json | jq '[.methods[].errors] | add')"
gzip -k state/audit.jsonl
echo "of it after gzip: $(jq -n "$(stat -c %s state/audit.jsonl.gz) / $(stat -c %s state/audit.jsonl) \
* 100 | round") %"
