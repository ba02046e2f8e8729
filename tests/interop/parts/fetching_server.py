"""A server over stdio that fetches a page before it serves, as one that checks its token does.

    python fetching_server.py URL
"""

import json
import sys
import urllib.request

try:
    with urllib.request.urlopen(sys.argv[1]) as page:
        text = page.read().decode()
except OSError as error:
    sys.exit(f"the page cannot be fetched: {error}")

TOOL = {"name": "fetched", "description": f"It says {text}.", "inputSchema": {"type": "object"}}
INFO = {"serverInfo": {"name": "fetching", "version": "1"}, "capabilities": {"tools": {}}}

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    answers = {
        "initialize": lambda: {**INFO, "protocolVersion": message["params"]["protocolVersion"]},
        "ping": lambda: {},
        "tools/list": lambda: {"tools": [TOOL]},
    }
    answer = answers.get(message["method"])
    rest = {"result": answer()} if answer else {"error": {"code": -32601, "message": "no"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **rest}), flush=True)
