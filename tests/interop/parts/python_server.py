"""A server of the Python SDK of either generation, for the interop tests: 1.x is legacy, 2.x supports both eras.

    python python_server.py stdio       one client on stdin and stdout
    python python_server.py http        Streamable HTTP on loopback, on a free port

Its responses can be compared byte by byte: a few prompts (with completion), tools, a resource and a
template, and each kind of failure that the SDK has. `wait` reports progress once and then waits to be
cancelled. `ask`, `sample`, `roots`, `log` and `touch` send messages to the client in mid-call.

Over HTTP it prints one line, `listening on http://127.0.0.1:PORT/mcp`, once its port is bound.
"""

import socket
import sys

import anyio
import pydantic

try:
    from mcp.server.mcpserver import Context, Image, MCPServer
except ImportError:
    from mcp.server.fastmcp import Context, Image
    from mcp.server.fastmcp import FastMCP as MCPServer

try:
    import mcp_types as types
except ImportError:
    from mcp import types

LANGUAGES = ["Dutch", "English", "German", "Greek"]
STATIONS = ["Delft", "Deventer", "Zwolle"]

mcp = MCPServer(
    "weir-interop-python", instructions="Ask for the water politely.", log_level="CRITICAL"
)


# === Prompts ===


@mcp.prompt(title="Greeting")
def greet(name: str, language: str = "English") -> str:
    """Greets somebody by name."""
    return f"Greet {name} in {language}."


@mcp.prompt()
def plain() -> str:
    """Takes no arguments."""
    return "Say hello."


@mcp.completion()
async def complete(ref, argument, context):
    known = {"language": LANGUAGES, "station": STATIONS}.get(argument.name, [])
    values = [value for value in known if value.lower().startswith(argument.value.lower())]
    return types.Completion.model_validate({"values": values, "hasMore": False})


# === Resources ===


@mcp.resource("water://stations", mime_type="text/plain")
def stations() -> str:
    """Every station that is known."""
    return "\n".join(STATIONS)


@mcp.resource("water://{station}/level", mime_type="text/plain")
def level(station: str) -> str:
    """The level at one station."""
    if station not in STATIONS:
        raise ValueError(f"no gauge at {station}")
    return f"{station}: −0,4 m"


# === Tools ===


class Depth(pydantic.BaseModel):
    """A depth in several forms that a careless hand changes on the way."""

    metres: float
    whole: float
    tiny: float
    grains: int
    text: str


@mcp.tool()
def depth(metres: float, text: str) -> Depth:
    """How deep the water is."""
    return Depth(metres=metres, whole=2.0, tiny=1e-300, grains=9007199254740993, text=text)


@mcp.tool()
async def count(steps: int, ctx: Context) -> str:
    """Counts, reporting progress at each step."""
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps, f"step {step}")
    return f"counted to {steps}"


@mcp.tool()
async def wait(ctx: Context) -> str:
    """Tells of its progress once, and waits to be cancelled."""
    await ctx.report_progress(1, 2)
    # Only a failing test waits for that long.
    await anyio.sleep(30)
    return "nobody cancelled"


@mcp.tool()
def fail(text: str) -> str:
    """Fails, in the text's words."""
    raise ValueError(text)


@mcp.tool()
def picture() -> Image:
    """A picture."""
    return Image(data=b"\x89PNG\r\n\x1a\n", format="png")


# === Messages to the client in mid-call ===


class Name(pydantic.BaseModel):
    name: str


@mcp.tool()
async def ask(ctx: Context) -> str:
    """Asks the client's user for a name."""
    answer = await ctx.elicit("Who are you?", Name)
    return f"{answer.action}: {getattr(getattr(answer, 'data', None), 'name', None)}"


@mcp.tool()
async def sample(ctx: Context) -> str:
    """Asks the client's model."""
    content = types.TextContent(type="text", text="What is a weir?")
    message = types.SamplingMessage(role="user", content=content)
    # Without the id the request would belong to no call.
    answer = await ctx.session.create_message(
        [message], max_tokens=9, related_request_id=ctx.request_id
    )
    return answer.content.text


@mcp.tool()
async def roots(ctx: Context) -> str:
    """Asks for the client's roots, which this SDK does beside every call."""
    answer = await ctx.session.list_roots()
    return " ".join(str(root.uri) for root in answer.roots)


# A level handler makes the server declare `logging`; log messages are sent regardless of the level.
if hasattr(mcp, "_mcp_server"):

    @mcp._mcp_server.set_logging_level()
    async def take_level(level):
        pass

else:

    async def take_level(context, params):
        return types.EmptyResult()

    mcp._lowlevel_server.add_request_handler(
        "logging/setLevel", types.SetLevelRequestParams, take_level
    )


@mcp.tool()
async def log(text: str, ctx: Context) -> str:
    """Writes a line to the client's log."""
    await ctx.info(text)
    return "logged"


@mcp.tool()
async def touch(uri: str, ctx: Context) -> str:
    """Tells that a resource has changed."""
    if hasattr(ctx, "notify_resource_updated"):
        await ctx.notify_resource_updated(uri)
    else:
        await ctx.session.send_resource_updated(uri)
    return f"touched {uri}"


def serve_http():
    import uvicorn

    # Bound here, so that the line below is true and no caller has to guess a free port.
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    app = mcp.streamable_http_app()
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    try:
        {"stdio": mcp.run, "http": serve_http}[sys.argv[1]]()
    except KeyboardInterrupt:
        pass
