"""A client of the Python SDK 2.x: the legacy era over every transport, the modern one over HTTP and stdio.

In the modern era it is used as by its users: it detects the era (`auto`).
"""

import contextlib

import anyio
import anyio.lowlevel
import mcp_types as types
import steps
from contract import Changes, counted, go, report, parsed_arguments, walk
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.sse import sse_client
from steps import callbacks, take


def target(options):
    first, *args = options.target
    if options.wire == "http":
        return first
    if options.wire == "sse":
        return sse_client(first)
    return StdioServerParameters(command=first, args=args)


async def main():
    options = parsed_arguments()
    changes, updates = Changes(), Changes()

    async def on_message(message):
        if isinstance(message, types.PromptListChangedNotification):
            changes.notify()
        if isinstance(message, types.ResourceUpdatedNotification):
            updates.notify()

    mode = "auto" if options.era == "modern" else "legacy"
    async with Client(
        target(options), mode=mode, message_handler=on_message, **callbacks(types)
    ) as client:
        await go()

        async def complete(ref, argument):
            kinds = {"ref/prompt": types.PromptReference, "ref/resource": types.ResourceTemplateReference}
            return await client.complete(kinds[ref["type"]].model_validate(ref), argument)

        async def call(tool, on_progress):
            return await client.call_tool(
                tool["name"], tool["arguments"], progress_callback=on_progress
            )

        modern = client.protocol_version >= "2026-07-28"
        if steps.SCRIPT:
            listens = contextlib.AsyncExitStack()

            async def subscribe(uri):
                if modern:
                    listen = client.listen(resource_subscriptions=[uri])
                    await listens.enter_async_context(listen)
                else:
                    await client.subscribe_resource(uri)

            async def unsubscribe(uri):
                if modern:
                    await listens.aclose()
                else:
                    await client.unsubscribe_resource(uri)

            await take(
                list_page=lambda method, cursor: getattr(client, method)(cursor=cursor),
                ping=client.send_ping,
                get=lambda params: client.get_prompt(params["name"], params.get("arguments")),
                complete=complete,
                read=client.read_resource,
                call=lambda params, on_progress: client.call_tool(
                    params["name"], params.get("arguments"), progress_callback=on_progress, meta=params.get("_meta")
                ),
                # The SDK sends the cancellation itself.
                cancelled=anyio.lowlevel.checkpoint,
                request=lambda method, params: client.session.send_request(
                    types.Request(method=method, params=params), types.EmptyResult
                ),
                level=client.set_logging_level,
                subscribe=subscribe,
                unsubscribe=unsubscribe,
                next_update=updates.next,
                error=MCPError,
            )
            return
        seen, wait_for_change = await walk(
            client,
            list_page=lambda method, cursor: getattr(client, method)(cursor=cursor),
            # Below the cache, which keeps a page for its `ttlMs`.
            sent=counted(client.session),
            complete=complete,
            call=call,
            read=client.read_resource,
            error=MCPError,
            changes=changes,
        )
        # Notifications of a subscription go to the same handler.
        async with client.listen(prompts_list_changed=True) if modern else contextlib.nullcontext():
            await wait_for_change()
        report({"server": client.server_info.name, "revision": client.protocol_version} | seen)


steps.fork_for_each_script()
anyio.run(main)
