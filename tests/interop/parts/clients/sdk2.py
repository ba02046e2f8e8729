"""A client of the Python SDK 2.x: the legacy era over every wire, the modern one over HTTP and stdio.

In the modern era it is as its users have it: it asks which era there is (`auto`).
"""

import contextlib

import anyio
import mcp_types as types
from contract import Changes, counted, go, report, told, walk
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.sse import sse_client


def target(options):
    first, *args = options.target
    if options.wire == "http":
        return first
    if options.wire == "sse":
        return sse_client(first)
    return StdioServerParameters(command=first, args=args)


async def main():
    options = told()
    changes = Changes()

    async def on_message(message):
        if isinstance(message, types.PromptListChangedNotification):
            changes.tell()

    mode = "auto" if options.era == "modern" else "legacy"
    async with Client(target(options), mode=mode, message_handler=on_message) as client:
        await go()

        async def complete(ref, argument):
            kinds = {"ref/prompt": types.PromptReference, "ref/resource": types.ResourceTemplateReference}
            return await client.complete(kinds[ref["type"]].model_validate(ref), argument)

        async def call(tool, on_progress):
            return await client.call_tool(
                tool["name"], tool["arguments"], progress_callback=on_progress
            )

        seen, hear = await walk(
            client,
            list_page=lambda method, cursor: getattr(client, method)(cursor=cursor),
            # Below what it keeps for as long as it may.
            sent=counted(client.session),
            complete=complete,
            call=call,
            read=client.read_resource,
            error=MCPError,
            changes=changes,
        )
        modern = client.protocol_version >= "2026-07-28"
        # The changes of a subscription come to the same handler.
        async with client.listen(prompts_list_changed=True) if modern else contextlib.nullcontext():
            await hear()
        report({"server": client.server_info.name, "revision": client.protocol_version} | seen)


anyio.run(main)
