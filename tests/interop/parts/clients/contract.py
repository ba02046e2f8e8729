"""Common part of the clients written in Python: the contract that the README beside `parts` describes.

It parses the arguments, waits for the test where the contract says so, and does the task with a client
of either generation of the SDK. The differences between the two are in `sdk1.py` and `sdk2.py`.
"""

import argparse
import json
import os
import pathlib
import sys

import anyio
import anyio.to_thread

TASK = json.loads((pathlib.Path(__file__).parent / os.environ.get("TASK", "task.json")).read_text())


def parsed_arguments():
    """`--era legacy|modern --wire http|sse|stdio TARGET...`"""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--wire", choices=["http", "sse", "stdio"], required=True)
    parser.add_argument("--era", choices=["legacy", "modern"], required=True)
    parser.add_argument("target", nargs=argparse.REMAINDER)
    return parser.parse_args()


async def go():
    """The test sends `go` when the fleet is complete."""
    while await anyio.to_thread.run_sync(sys.stdin.readline) != "go\n":
        pass


def waiting():
    print("waiting for a change", flush=True)


def report(seen):
    print(json.dumps(seen), flush=True)


def counted(session):
    """Counts the requests for prompts that a client sends."""
    leave, sent = session.list_prompts, 0

    async def list_prompts(*args, **kwargs):
        nonlocal sent
        sent += 1
        return await leave(*args, **kwargs)

    session.list_prompts = list_prompts
    return lambda: sent


class Changes:
    """Change notifications, which can be awaited one at a time."""

    def __init__(self):
        self._told = anyio.Event()

    def notify(self):
        self._told.set()

    async def next(self):
        await self._told.wait()
        self._told = anyio.Event()


def plain(model):
    """A result with the member names of JSON, which differ from the SDK's attribute names."""
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


async def walk(client, *, list_page, sent, complete, call, read, error, changes):
    """Does the task with a connected client, up to the point where it awaits a change.

    `list_page(method, cursor)` requests one page, `sent()` returns the number of sent requests for
    prompts, `call(tool, on_progress)` calls a tool, and `error` is what the client raises.
    """

    async def names(method, kind, member):
        found, cursor = [], None
        while True:
            page = plain(await list_page(method, cursor))
            found += [item[member] for item in page[kind]]
            cursor = page.get("nextCursor")
            if cursor is None:
                return found

    async def prompts():
        return await names("list_prompts", "prompts", "name")

    seen = {"prompts": await prompts(), "pages": sent()}
    await prompts()
    seen["again"] = sent() - seen["pages"]
    seen["got"] = {}
    for get in TASK["get"]:
        got = plain(await client.get_prompt(get["name"], get["arguments"]))
        seen["got"][get["name"]] = [message["content"]["text"] for message in got["messages"]]
    seen["completed"] = {}
    for ask in TASK["complete"]:
        of = ask["ref"].get("name") or ask["ref"]["uri"]
        completed = plain(await complete(ask["ref"], ask["argument"]))
        seen["completed"][of] = completed["completion"]["values"]

    seen["tools"] = await names("list_tools", "tools", "name")
    seen["structured"] = {}
    for tool in TASK["call"]:
        called = plain(await call(tool, None))
        seen["structured"][tool["name"]] = called["structuredContent"]
    seen["counted"] = {}
    for tool in TASK["count"]:
        progress = []

        async def on_progress(done, _total, _message, progress=progress):
            # Every number is a float here.
            progress.append(int(done) if done == int(done) else done)

        called = plain(await call(tool, on_progress))
        said = called["content"][0]["text"]
        seen["counted"][tool["name"]] = {"said": said, "progress": progress}

    seen["resources"] = await names("list_resources", "resources", "uri")
    seen["templates"] = await names("list_resource_templates", "resourceTemplates", "uriTemplate")
    seen["read"] = {uri: plain(await read(uri))["contents"][0]["text"] for uri in TASK["read"]}
    try:
        await client.get_prompt(TASK["unknown"])
        seen["unknown"] = "a prompt"
    except error as refusal:
        seen["unknown"] = {"code": refusal.error.code, "message": refusal.error.message}

    async def wait_for_change():
        """Waits for the change, once it would be received."""
        waiting()
        # Upstreams that have just connected may be announced, too: wait for this change.
        while True:
            await changes.next()
            seen["after"] = await prompts()
            if TASK["awaited"] in seen["after"]:
                return

    return seen, wait_for_change
