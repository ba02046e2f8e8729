"""ContextForge in front of one server: contextforge.py PORT URL FOLDER.

Its database is a file in FOLDER. Limits, the plugins' own checks of addresses and the admin pages are off, so that it
does only the work of a gateway; clients send a token, which the last line of the output contains: `ready TOKEN`.
"""

import asyncio
import json
import os
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request

port, url, folder = sys.argv[1:]
os.environ.update(
    DATABASE_URL=f"sqlite:///{folder}/contextforge.db",
    JWT_SECRET_KEY=secrets.token_hex(32),
    AUTH_ENCRYPTION_SECRET=secrets.token_hex(32),
    PLATFORM_ADMIN_EMAIL="bench@example.com",
    PLATFORM_ADMIN_PASSWORD=secrets.token_hex(16) + "Aa1!",
    BASIC_AUTH_PASSWORD=secrets.token_hex(16) + "Aa1!",
    SSRF_ALLOW_LOCALHOST="true",
    SSRF_ALLOW_PRIVATE_NETWORKS="true",
    RATE_LIMITING_ENABLED="false",
    TOOL_RATE_LIMIT="1000000000",
    LOG_LEVEL="ERROR",
    CACHE_TYPE="memory",
    # A legacy session would need a client of its own.
    USE_STATEFUL_SESSIONS="false",
)
os.chdir(folder)

from mcpgateway.utils.create_jwt_token import create_jwt_token  # noqa: E402  it reads the variables

claims = {"sub": "bench@example.com", "is_admin": True, "teams": None, "token_use": "api"}
token = asyncio.run(create_jwt_token(claims, expires_in_minutes=600))
server = subprocess.Popen(
    [sys.executable, "-m", "uvicorn", "mcpgateway.main:app", "--host", "127.0.0.1", "--port", port]
    + ["--log-level", "error", "--no-access-log"],
    stdout=sys.stderr,
)


def ask(path, body=None):
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    return urllib.request.urlopen(request, timeout=60).read()


for attempt in range(1800):
    if server.poll() is not None:
        sys.exit("it ended before it was ready")
    try:
        ask("/health")
        break
    except OSError:
        time.sleep(0.1)
try:
    ask("/gateways", {"name": "hub", "url": url, "transport": "STREAMABLEHTTP", "visibility": "public"})
except urllib.error.HTTPError as error:
    sys.exit(f"it does not take the server: {error.code} {error.read().decode()[:300]}")
print(f"ready {token}", flush=True)
sys.exit(server.wait())
