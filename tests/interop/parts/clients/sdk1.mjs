// A client of the TypeScript SDK v1, which supports the legacy era over every transport.

import { Changes, Progress, countSent, go, report, requireFrom, parsedArguments, walk } from './contract.mjs';
import { ANSWERS, script, take } from './steps.mjs';

const require = requireFrom('npm');
const { Client } = require('@modelcontextprotocol/sdk/client/index.js');
const { SSEClientTransport } = require('@modelcontextprotocol/sdk/client/sse.js');
const { StdioClientTransport } = require('@modelcontextprotocol/sdk/client/stdio.js');
const { StreamableHTTPClientTransport } = require('@modelcontextprotocol/sdk/client/streamableHttp.js');
const types = require('@modelcontextprotocol/sdk/types.js');

const { wire, era, target } = parsedArguments();
if (era !== 'legacy') throw new Error('this SDK speaks the legacy era only');
const [first, ...args] = target;
const transport = {
    http: () => new StreamableHTTPClientTransport(new URL(first)),
    sse: () => new SSEClientTransport(new URL(first)),
    stdio: () => new StdioClientTransport({ command: first, args }),
}[wire]();

const client = new Client({ name: 'sdk1', version: '0' }, { capabilities: script?.capabilities });
if (script !== undefined) {
    const asked = {
        elicitation: types.ElicitRequestSchema,
        sampling: types.CreateMessageRequestSchema,
        roots: types.ListRootsRequestSchema,
    };
    for (const name of Object.keys(script.capabilities)) {
        client.setRequestHandler(asked[name], () => ANSWERS[name]);
    }
    const updates = new Changes();
    client.setNotificationHandler(types.ResourceUpdatedNotificationSchema, () => updates.notify());
    client.setNotificationHandler(types.LoggingMessageNotificationSchema, () => {});
    await client.connect(transport);
    await go();
    await take(client, {
        page: (method, params) => client[method](params),
        call: (params, options) => client.callTool(params, undefined, options),
        request: request => client.request(request, types.ResultSchema),
        updates,
    });
    await client.close();
    process.exit();
}

const changes = new Changes();
const progress = new Progress();
client.setNotificationHandler(types.PromptListChangedNotificationSchema, () => changes.notify());
client.setNotificationHandler(types.ProgressNotificationSchema, progress.take);
const pages = countSent(transport, 'prompts/list');
// The client reports the revision to its transport only.
let revision;
const takeRevision = transport.setProtocolVersion?.bind(transport);
transport.setProtocolVersion = agreed => {
    revision = agreed;
    takeRevision?.(agreed);
};
await client.connect(transport);
await go();

// This SDK leaves pagination to its user.
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
