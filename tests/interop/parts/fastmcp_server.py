"""A FastMCP server for both eras over Streamable HTTP, for the interop tests.

It offers a few prompts (with arguments and their completion), tools, a resource and a resource
template. Its tools `add_prompt`, `remove_prompt`, `add_tool` and `remove_tool` change its
lists at run time, and it then notifies all clients: legacy sessions on their GET stream, modern
clients on their `subscriptions/listen`. FastMCP itself supports neither (it notifies only the
requesting session, and has no listen), so this file adds both with the SDK's own parts.

Prints one line, `listening on http://HOST:PORT/mcp`, once its port is bound; port 0 takes a free one.
"""

import argparse
import asyncio
import os
import socket

# Read when fastmcp is imported: a test's server must not check for a newer version.
os.environ.setdefault("FASTMCP_CHECK_FOR_UPDATES", "off")

from fastmcp import Context, FastMCP
from fastmcp.prompts import Prompt
from fastmcp.server.middleware import Middleware
from fastmcp.tools import Tool
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ToolsListChanged,
)
from mcp_types import SubscriptionsListenRequestParams

CITIES = ["Amsterdam", "Antwerp", "Athens", "Berlin", "Bern"]
LANGUAGES = ["Dutch", "English", "German", "Greek"]

mcp = FastMCP(
    "weir-interop-fastmcp",
    version="1.0.0",
    instructions="Ask for the weather politely.",
)


# === Initial lists ===


@mcp.prompt(title="Greeting")
def greet(name: str, language: str = "English") -> str:
    """Greets somebody by name."""
    return f"Greet {name} in {language}."


@mcp.prompt(tags={"weather"})
def forecast(city: str) -> list[str]:
    """Asks for a forecast, in two messages."""
    return [f"What is the weather in {city}?", "Answer in one line."]


@mcp.prompt
def plain() -> str:
    """Takes no arguments."""
    return "Say hello."


@mcp.completion
def complete(ref, argument, context) -> list[str]:
    known = {"city": CITIES, "language": LANGUAGES}.get(argument.name, [])
    return [value for value in known if value.lower().startswith(argument.value.lower())]


@mcp.tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@mcp.tool
async def count(steps: int, ctx: Context) -> str:
    """Counts, reporting progress at each step."""
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps, f"step {step}")
    return f"counted to {steps}"


@mcp.resource("weather://cities", mime_type="text/plain")
def cities() -> str:
    """Every city that is known."""
    return "\n".join(CITIES)


@mcp.resource("weather://{city}/today", mime_type="text/plain")
def today(city: str) -> str:
    """The weather in one city."""
    return f"{city}: sunny"


# === Changes and their notifications ===

bus = InMemorySubscriptionBus()
# The SDK answers `subscriptions/listen`; once it is registered, `listChanged` is declared to modern clients.
mcp._mcp_server.add_request_handler(
    "subscriptions/listen", SubscriptionsListenRequestParams, ListenHandler(bus)
)

# Legacy sessions by id. A change concerns all of them, not only the one that called the tool.
sessions: dict = {}


class RememberSession(Middleware):
    """Keeps the newest handle of every legacy session that has spoken since its handshake."""

    async def on_message(self, context, call_next):
        ctx = context.fastmcp_context
        request = ctx.request_context if ctx else None
        if request is not None and request.request is not None:
            session_id = request.request.headers.get("mcp-session-id")
            if session_id:
                sessions[session_id] = request.session
        return await call_next(context)


mcp.add_middleware(RememberSession())


async def notify_all(event, send: str) -> None:
    await bus.publish(event)
    for session_id, session in list(sessions.items()):
        try:
            await getattr(session, send)()
        except Exception:  # that session has ended
            sessions.pop(session_id, None)


@mcp.tool
async def add_prompt(name: str) -> str:
    """Adds a prompt with one argument, `topic`, and tells everybody."""

    def added(topic: str) -> str:
        return f"{name}: {topic}"

    mcp.add_prompt(Prompt.from_function(added, name=name, description="Added at run time."))
    await notify_all(PromptsListChanged(), "send_prompt_list_changed")
    return f"added prompt {name}"


@mcp.tool
async def remove_prompt(name: str) -> str:
    """Removes a prompt and tells everybody."""
    mcp.local_provider.remove_prompt(name)
    await notify_all(PromptsListChanged(), "send_prompt_list_changed")
    return f"removed prompt {name}"


@mcp.tool
async def add_tool(name: str) -> str:
    """Adds a tool without arguments and tells everybody."""

    def added() -> str:
        return name

    mcp.add_tool(Tool.from_function(added, name=name, description="Added at run time."))
    await notify_all(ToolsListChanged(), "send_tool_list_changed")
    return f"added tool {name}"


@mcp.tool
async def remove_tool(name: str) -> str:
    """Removes a tool and tells everybody."""
    mcp.local_provider.remove_tool(name)
    await notify_all(ToolsListChanged(), "send_tool_list_changed")
    return f"removed tool {name}"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0, the default, takes a free one")
    parser.add_argument(
        "--json", action="store_true", help="answer in application/json instead of a stream"
    )
    options = parser.parse_args()
    # Bound here, so that the line below is true and no caller has to guess a free port.
    listener = socket.create_server((options.host, options.port))
    host, port = listener.getsockname()[:2]
    print(f"listening on http://{host}:{port}/mcp", flush=True)
    await mcp.run_http_async(
        show_banner=False,
        host=host,
        port=port,
        path="/mcp",
        sockets=[listener],
        json_response=options.json,
        log_level="warning",
    )


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pass
