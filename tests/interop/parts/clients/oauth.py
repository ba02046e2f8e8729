"""A client without a user, with the Python SDK: `python oauth.py URL ISSUER`.

It gets its token with the secret in ROBOT_SECRET, and prints its observations as one line.
"""

import json
import os
import sys

import anyio
import httpx2
from mcp import Client
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.streamable_http import streamable_http_client


class Storage:
    def __init__(self):
        self.tokens = self.client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client_info):
        self.client = client_info


async def main():
    url, issuer = sys.argv[1:]
    auth = ClientCredentialsOAuthProvider(
        url, Storage(), "robot", os.environ["ROBOT_SECRET"], issuer=issuer
    )
    async with httpx2.AsyncClient(auth=auth) as http:
        async with Client(streamable_http_client(url, http_client=http)) as client:
            listed = await client.list_prompts()
            print(json.dumps({"prompts": [prompt.name for prompt in listed.prompts]}))


anyio.run(main)
