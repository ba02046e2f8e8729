"""A server of files of the Python SDK of either generation, over stdio: /pub/a.txt is public, /secret/b.txt is not.

It lists the public file and a template for all others, so its
response depends on its SDK's interpretation of a URI.
"""

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer

FILES = {("pub", "a.txt"): "for everybody", ("secret", "b.txt"): "for nobody"}

mcp = MCPServer("weir-interop-files", log_level="CRITICAL")


@mcp.resource("file:///pub/a.txt")
def public() -> str:
    """The public file."""
    return FILES["pub", "a.txt"]


@mcp.resource("file:///{folder}/{name}")
def file(folder: str, name: str) -> str:
    """Any file."""
    return FILES[folder, name]


mcp.run("stdio")
