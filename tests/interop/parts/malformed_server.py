"""A server over stdio that lists the malformed definitions of `tests/fixtures`, beside valid ones, byte for byte.

It uses no SDK, because an SDK would reject the definitions: its messages are joined from text. It is of the
legacy era. Its completions have 150 values.
"""

import json
import pathlib
import sys

CORPUS = pathlib.Path(__file__).parents[2] / "fixtures/malformed_definitions.txt"
LISTS = {
    "prompts/list": ("prompt", "prompts"),
    "tools/list": ("tool", "tools"),
    "resources/list": ("resource", "resources"),
    "resources/templates/list": ("template", "resourceTemplates"),
}

cases = [line.split(" | ", 3) for line in CORPUS.read_text().splitlines() if not line.startswith("#")]

for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if "id" not in message:
        continue
    if method in LISTS:
        kind, member = LISTS[method]
        items = ",".join(definition for of, _, _, definition in cases if of == kind)
        outcome = f'"result":{{"{member}":[{items}]}}'
    elif method == "initialize":
        result = {
            "protocolVersion": "2025-11-25",
            "serverInfo": {"name": "malformed", "version": "0"},
            "capabilities": {"prompts": {}, "tools": {}, "resources": {}, "completions": {}},
        }
        outcome = f'"result":{json.dumps(result)}'
    elif method == "completion/complete":
        values = [str(number) for number in range(150)]
        outcome = f'"result":{json.dumps({"completion": {"values": values}})}'
    else:
        outcome = '"error":{"code":-32601,"message":"no such method"}'
    print(f'{{"jsonrpc":"2.0","id":{json.dumps(message["id"])},{outcome}}}', flush=True)
