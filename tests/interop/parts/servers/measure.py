"""Lists of the servers of table.json, and the sizes of what they define: rows of decision 0043.

    .cache/interop/servers_python/bin/python tests/interop/parts/servers/measure.py [NAME...]

A server gets a home folder of its own, no program in its PATH and a proxy that does not exist.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PARTS = Path(os.path.realpath(HERE.parents[3] / ".cache/interop"))
LISTS = [
    ("tools/list", "tools"),
    ("prompts/list", "prompts"),
    ("resources/list", "resources"),
    ("resources/templates/list", "resourceTemplates"),
]


def bytes_of(value):
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


def lists(row, home):
    fill = lambda text: text.replace("{home}", home)
    if "node" in row:
        program = [PARTS / "bin/node", PARTS / "servers/node_modules" / row["node"]]
    else:
        program = [PARTS / "servers_python/bin" / row["python"]]
    closed = {name: "http://127.0.0.1:9" for name in ("HTTP_PROXY", "HTTPS_PROXY")}
    closed |= {"PATH": "/nonexistent", "HOME": home, "NODE_USE_ENV_PROXY": "1"}
    server = subprocess.Popen(
        [*program, *map(fill, row["arguments"])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=closed | {name: fill(value) for name, value in row["env"].items()},
        cwd=home,
    )
    ids = iter(range(1, 1_000_000))

    def write(message):
        server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        server.stdin.flush()

    def ask(method, params):
        number = next(ids)
        write({"id": number, "method": method, "params": params})
        for line in server.stdout:
            if not line.startswith(b"{"):
                continue
            message = json.loads(line)
            if message.get("id") == number and "method" not in message:
                return message
        raise RuntimeError(f"{row['name']} has ended")

    us = {"name": "measure", "version": "0"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": us}
    ask("initialize", hello)
    write({"method": "notifications/initialized"})
    for method, member in LISTS:
        items, cursor = [], {}
        while cursor is not None:
            result = ask(method, cursor).get("result", {})
            items += result.get(member, [])
            cursor = {"cursor": result["nextCursor"]} if result.get("nextCursor") else None
        yield items
    server.stdin.close()
    server.kill()
    server.wait()


print("| server | items | lists | largest definition | without `outputSchema` and `icons` |")
print("|---|---|---|---|---|")
for row in json.loads((HERE / "table.json").read_text()):
    if sys.argv[1:] and row["name"] not in sys.argv[1:]:
        continue
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "files").mkdir()
        kinds = list(lists(row, home))
    bare = lambda item: {k: v for k, v in item.items() if k not in ("outputSchema", "icons")}
    items = sum(kinds, [])
    largest, name = max((bytes_of(item), item["name"]) for item in items)
    without, bare_name = max((bytes_of(bare(item)), item["name"]) for item in items)
    counts = " + ".join(str(len(kind)) for kind in kinds)
    print(f"| {row['name']} | {counts} | {bytes_of(kinds):,} | {largest:,} `{name}`", end="")
    print(f" | {without:,}{'' if bare_name == name else f' `{bare_name}`'} |", flush=True)
