"""FastMCP's own proxy in front of one server: fastmcp_proxy.py PORT URL."""

import sys

from fastmcp.server import create_proxy

port, url = sys.argv[1:]
create_proxy(url, name="proxy").run(
    transport="http", host="127.0.0.1", port=int(port), path="/mcp", log_level="error", show_banner=False
)
