"""A client of the Python SDK 1.x, which speaks the legacy era over every wire."""

import anyio
from contract import Changes, counted, go, report, told, walk
from mcp import ClientSession, McpError, StdioServerParameters, types
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from pydantic import AnyUrl


def connect(options):
    first, *args = options.target
    if options.wire == "http":
        return streamable_http_client(first)
    if options.wire == "sse":
        return sse_client(first)
    return stdio_client(StdioServerParameters(command=first, args=args))


async def main():
    options = told()
    if options.era != "legacy":
        raise SystemExit("this SDK speaks the legacy era only")
    changes = Changes()

    async def on_message(message):
        root = getattr(message, "root", None)
        if isinstance(root, types.PromptListChangedNotification):
            changes.tell()

    # Over HTTP a third member tells the session's id.
    async with connect(options) as (receive, send, *_):
        async with ClientSession(receive, send, message_handler=on_message) as client:
            started = await client.initialize()
            await go()

            async def list_page(method, cursor):
                page = types.PaginatedRequestParams(cursor=cursor) if cursor else None
                return await getattr(client, method)(params=page)

            async def complete(ref, argument):
                kinds = {"ref/prompt": types.PromptReference, "ref/resource": types.ResourceTemplateReference}
                return await client.complete(kinds[ref["type"]].model_validate(ref), argument)

            async def call(tool, on_progress):
                return await client.call_tool(
                    tool["name"], tool["arguments"], progress_callback=on_progress
                )

            seen, hear = await walk(
                client,
                list_page=list_page,
                sent=counted(client),
                complete=complete,
                call=call,
                read=lambda uri: client.read_resource(AnyUrl(uri)),
                error=McpError,
                changes=changes,
            )
            # Over HTTP its GET stream has been open since the handshake.
            await hear()
            report({"server": started.serverInfo.name, "revision": started.protocolVersion} | seen)


anyio.run(main)
