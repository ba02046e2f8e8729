// A client of the TypeScript SDK v2: the legacy era over every transport, the modern one over HTTP and
// stdio. In the modern era it is used as by its users: it detects the era (`auto`).
//
// Over stdio it probes one process, which it then ends; the second process, which it keeps, receives nothing
// until the first request. Waiting for a message before that would take for ever.

import { Changes, Progress, countSent, go, report, requireFrom, parsedArguments, walk } from './contract.mjs';
import { ANSWERS, script, take } from './steps.mjs';

const require = requireFrom('npm');
const { Client, SSEClientTransport, StreamableHTTPClientTransport } = require('@modelcontextprotocol/client');
const { StdioClientTransport } = require('@modelcontextprotocol/client/stdio');
const { z } = require('zod');

const { wire, era, target } = parsedArguments();
const [first, ...args] = target;
const transport = {
    http: () => new StreamableHTTPClientTransport(new URL(first)),
    sse: () => new SSEClientTransport(new URL(first)),
    stdio: () => new StdioClientTransport({ command: first, args }),
}[wire]();

async function connect() {
    await client.connect(transport);
    if (wire !== 'stdio' || client.getProtocolEra() !== 'modern') return;
    await client.request({ method: 'server/discover', params: {} }, z.looseObject({}));
}

const mode = era === 'modern' ? 'auto' : 'legacy';
const client = new Client(
    { name: 'sdk2', version: '0' },
    { versionNegotiation: { mode }, capabilities: script?.capabilities },
);
if (script !== undefined) {
    const asked = { elicitation: 'elicitation/create', sampling: 'sampling/createMessage', roots: 'roots/list' };
    for (const name of Object.keys(script.capabilities)) {
        client.setRequestHandler(asked[name], () => ANSWERS[name]);
    }
    const updates = new Changes();
    client.setNotificationHandler('notifications/resources/updated', () => updates.notify());
    client.setNotificationHandler('notifications/message', () => {});
    await connect();
    await go();
    await take(client, {
        page: (method, params) => client[method](params),
        call: (params, options) => client.callTool(params, options),
        request: request => client.request(request, z.looseObject({})),
        subscribe:
            client.getProtocolEra() === 'modern'
                ? async uri => (await client.listen({ resourceSubscriptions: [uri] })).close
                : undefined,
        updates,
    });
    await client.close();
    process.exit();
}

const changes = new Changes();
const progress = new Progress();
client.setNotificationHandler('notifications/prompts/list_changed', () => changes.notify());
client.setNotificationHandler('notifications/progress', progress.take);
const pages = countSent(transport, 'prompts/list');
await connect();
await go();

const seen = await walk(client, {
    // Without a cursor the SDK follows the pages itself, and caches them for their `ttlMs`.
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
