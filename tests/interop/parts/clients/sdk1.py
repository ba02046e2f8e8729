"""A client of the Python SDK 1.x, which supports the legacy era over every transport."""

import anyio
import steps
from contract import Changes, counted, go, report, parsed_arguments, walk
from mcp import ClientSession, McpError, StdioServerParameters, types
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from pydantic import AnyUrl
from steps import callbacks, take, was_taken


def connect(options):
    first, *args = options.target
    if options.wire == "http":
        return streamable_http_client(first)
    if options.wire == "sse":
        return sse_client(first)
    return stdio_client(StdioServerParameters(command=first, args=args))


async def main():
    options = parsed_arguments()
    if options.era != "legacy":
        raise SystemExit("this SDK speaks the legacy era only")
    changes, updates = Changes(), Changes()

    async def on_message(message):
        root = getattr(message, "root", None)
        if isinstance(root, types.PromptListChangedNotification):
            changes.notify()
        if isinstance(root, types.ResourceUpdatedNotification):
            updates.notify()

    # Over HTTP the third member returns the session id.
    async with connect(options) as (receive, send, *_):
        async with ClientSession(
            receive, send, message_handler=on_message, **callbacks(types)
        ) as client:
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

            async def cancelled():
                # This SDK sends nothing when its user cancels.
                params = types.CancelledNotificationParams(
                    requestId=client._request_id - 1, reason="enough"
                )
                note = types.CancelledNotification(params=params)
                await client.send_notification(types.ClientNotification(note))

            if steps.SCRIPT:
                await take(
                    list_page=list_page,
                    ping=client.send_ping,
                    get=lambda params: client.get_prompt(params["name"], params.get("arguments")),
                    complete=complete,
                    read=lambda uri: client.read_resource(AnyUrl(uri)),
                    call=lambda params, on_progress: client.call_tool(
                        params["name"], params.get("arguments"), progress_callback=on_progress
                    ),
                    cancelled=cancelled,
                    request=lambda method, params: client.send_request(
                        types.Request(method=method, params=params), types.EmptyResult
                    ),
                    level=client.set_logging_level,
                    subscribe=lambda uri: client.subscribe_resource(AnyUrl(uri)),
                    unsubscribe=lambda uri: client.unsubscribe_resource(AnyUrl(uri)),
                    next_update=updates.next,
                    error=McpError,
                )
                return
            seen, wait_for_change = await walk(
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
            await wait_for_change()
            report({"server": started.serverInfo.name, "revision": started.protocolVersion} | seen)


steps.fork_for_each_script()
try:
    anyio.run(main)
except BaseException:
    # This SDK raises if its server sends a message during its shutdown.
    if not (steps.SCRIPT and was_taken()):
        raise
