// A client of the TypeScript SDK v2: the legacy era over every wire, the modern one over HTTP and
// stdio. In the modern era it is as its users have it: it asks which era there is (`auto`).

import { Changes, Progress, countSent, go, report, requireFrom, told, walk } from './contract.mjs';

const require = requireFrom('npm');
const { Client, SSEClientTransport, StreamableHTTPClientTransport } = require('@modelcontextprotocol/client');
const { StdioClientTransport } = require('@modelcontextprotocol/client/stdio');

const { wire, era, target } = told();
const [first, ...args] = target;
const transport = {
    http: () => new StreamableHTTPClientTransport(new URL(first)),
    sse: () => new SSEClientTransport(new URL(first)),
    stdio: () => new StdioClientTransport({ command: first, args }),
}[wire]();

const mode = era === 'modern' ? 'auto' : 'legacy';
const client = new Client({ name: 'sdk2', version: '0' }, { versionNegotiation: { mode } });
const changes = new Changes();
const progress = new Progress();
client.setNotificationHandler('notifications/prompts/list_changed', () => changes.tell());
client.setNotificationHandler('notifications/progress', progress.take);
const pages = countSent(transport, 'prompts/list');
await client.connect(transport);
await go();

const seen = await walk(client, {
    // Without a cursor it walks the pages itself, and keeps what it found for as long as it may.
    list: async (method, kind) => (await client[method]())[kind],
    call: (params, options) => client.callTool(params, options),
    listen: async () => {
        if (client.getProtocolEra() === 'modern') await client.listen({ promptsListChanged: true });
    },
    changes,
    pages,
    progress,
});
report({
    server: client.getServerVersion().name,
    revision: client.getNegotiatedProtocolVersion(),
    ...seen,
});
await client.close();
