// A client of the TypeScript SDK v1, which speaks the legacy era over every wire.

import { Changes, Progress, countSent, go, report, requireFrom, told, walk } from './contract.mjs';

const require = requireFrom('npm');
const { Client } = require('@modelcontextprotocol/sdk/client/index.js');
const { SSEClientTransport } = require('@modelcontextprotocol/sdk/client/sse.js');
const { StdioClientTransport } = require('@modelcontextprotocol/sdk/client/stdio.js');
const { StreamableHTTPClientTransport } = require('@modelcontextprotocol/sdk/client/streamableHttp.js');
const { ProgressNotificationSchema, PromptListChangedNotificationSchema } = require('@modelcontextprotocol/sdk/types.js');

const { wire, era, target } = told();
if (era !== 'legacy') throw new Error('this SDK speaks the legacy era only');
const [first, ...args] = target;
const transport = {
    http: () => new StreamableHTTPClientTransport(new URL(first)),
    sse: () => new SSEClientTransport(new URL(first)),
    stdio: () => new StdioClientTransport({ command: first, args }),
}[wire]();

const client = new Client({ name: 'sdk1', version: '0' });
const changes = new Changes();
const progress = new Progress();
client.setNotificationHandler(PromptListChangedNotificationSchema, () => changes.tell());
client.setNotificationHandler(ProgressNotificationSchema, progress.take);
const pages = countSent(transport, 'prompts/list');
// The client tells the revision to nobody but its transport.
let revision;
const takeRevision = transport.setProtocolVersion?.bind(transport);
transport.setProtocolVersion = agreed => {
    revision = agreed;
    takeRevision?.(agreed);
};
await client.connect(transport);
await go();

// This SDK leaves the walk through the pages to its user.
async function list(method, kind) {
    const all = [];
    let cursor;
    do {
        const page = await client[method]({ cursor });
        all.push(...page[kind]);
        cursor = page.nextCursor;
    } while (cursor !== undefined);
    return all;
}

const seen = await walk(client, {
    list,
    call: (params, options) => client.callTool(params, undefined, options),
    // Over HTTP its GET stream has been open since the handshake.
    listen: async () => {},
    changes,
    pages,
    progress,
});
report({ server: client.getServerVersion().name, revision, ...seen });
await client.close();
