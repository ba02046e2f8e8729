"""Runs the steps of a script in order, with a client of either Python SDK.

The messages are recorded outside of this program; it reports only the ending of each step. The README beside
`parts` lists the steps.
"""

import io
import json
import os
import sys

import anyio

# `{ capabilities, steps }`; without it the program does its task. With `names` a list reports the names of its items,
# joined, instead of `done`.
SCRIPT = json.loads(os.environ.get("SCRIPT", "null"))

# Responses of a client with that capability.
ANSWERS = {
    "elicitation": {"action": "accept", "content": {"name": "Ada", "confirmed": True}},
    "sampling": {
        "role": "assistant",
        "model": "none",
        "content": {"type": "text", "text": "It holds water back."},
    },
    "roots": {"roots": [{"uri": "file:///weir", "name": "weir"}]},
}

# Ending of each step.
endings = []

LISTS = {
    "prompts/list": "list_prompts",
    "tools/list": "list_tools",
    "resources/list": "list_resources",
    "resources/templates/list": "list_resource_templates",
}


def fork_for_each_script():
    """Returns in a process of its own for each member of `SCRIPTS`, `[URL, SCRIPT]`: one after the other.

    Most of the time of a short script is the import of the SDK, which these processes share.
    """
    global SCRIPT
    for url, script in json.loads(os.environ.get("SCRIPTS", "[]")):
        child = os.fork()
        if child == 0:
            SCRIPT = script
            sys.argv.append(url)
            sys.stdin = io.StringIO("go\n")
            return
        _, status = os.waitpid(child, 0)
        if status != 0:
            raise SystemExit(f"the script for {url} ended with {status}")
    if "SCRIPTS" in os.environ:
        raise SystemExit


def callbacks(types):
    """Constructor arguments of a client with the script's capabilities and responses."""

    def answering(name, result):
        async def answer(*_):
            return getattr(types, result).model_validate(ANSWERS[name])

        return answer

    known = {
        "elicitation": ("elicitation_callback", "ElicitResult"),
        "sampling": ("sampling_callback", "CreateMessageResult"),
        "roots": ("list_roots_callback", "ListRootsResult"),
    }
    wanted = SCRIPT["capabilities"] if SCRIPT else {}
    return {known[name][0]: answering(name, known[name][1]) for name in wanted}


async def take(*, list_page, ping, get, complete, read, call, cancelled, request, level, subscribe, unsubscribe, next_update, error):
    """Runs the steps. The parameters are the differences between the SDKs; `error` is their exception."""

    async def list_all(step):
        names, cursor = [], None
        while True:
            page = await list_page(LISTS[step["method"]], cursor)
            page = page.model_dump(by_alias=True)
            names += [item["name"] for member in page.values() if isinstance(member, list) for item in member]
            cursor = page.get("nextCursor")
            if cursor is None:
                return " ".join(names)

    async def ignore(*_):
        pass

    async def cancel_at_progress(step):
        progressed = anyio.Event()

        async def on_progress(*_):
            progressed.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, step["params"], on_progress)
            await progressed.wait()
            await cancelled()
            tasks.cancel_scope.cancel()

    kinds = {
        "ping": lambda step: ping(),
        "list": list_all,
        "get": lambda step: get(step["params"]),
        "complete": lambda step: complete(step["params"]["ref"], step["params"]["argument"]),
        "read": lambda step: read(step["params"]["uri"]),
        "call": lambda step: call(step["params"], None),
        "call with progress": lambda step: call(step["params"], ignore),
        "cancel at progress": cancel_at_progress,
        "request": lambda step: request(step["method"], step.get("params")),
        "log level": lambda step: level(step["level"]),
        "subscribe": lambda step: subscribe(step["uri"]),
        "hear of an update": lambda step: next_update(),
        "unsubscribe": lambda step: unsubscribe(step["uri"]),
    }
    for step in SCRIPT["steps"]:
        try:
            given = await kinds[step["do"]](step)
            shows = SCRIPT.get("names") and step["do"] == "list"
            endings.append(given if shows else "done")
        except error as refusal:
            endings.append(f"refused: {refusal.error.code}")
    print(json.dumps(endings), flush=True)


def was_taken():
    """Whether every step has run."""
    return len(endings) == len(SCRIPT["steps"])
