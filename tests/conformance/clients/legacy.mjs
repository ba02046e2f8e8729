// The client of the legacy era: the TypeScript SDK v1 over Streamable HTTP.

import { require } from '../fixtures/http_host.mjs';
import { CAPABILITIES, Received, INFO, answer, walk } from './walk.mjs';

const { Client } = require('@modelcontextprotocol/sdk/client/index.js');
const { StreamableHTTPClientTransport } = require('@modelcontextprotocol/sdk/client/streamableHttp.js');
const types = require('@modelcontextprotocol/sdk/types.js');

const received = new Received();
const client = new Client(INFO, { capabilities: CAPABILITIES });
for (const schema of [types.ElicitRequestSchema, types.CreateMessageRequestSchema, types.ListRootsRequestSchema]) {
    client.setRequestHandler(schema, ({ method, params }) => answer(received, method, params));
}
const on = (schema, kind, what) =>
    client.setNotificationHandler(schema, ({ params }) => received.record(kind, what(params ?? {})));
on(types.LoggingMessageNotificationSchema, 'logs', ({ level, logger, data }) => ({ level, logger, data }));
on(types.ProgressNotificationSchema, 'progress', ({ progress, total, message }) => ({ progress, total, message }));
on(types.ResourceUpdatedNotificationSchema, 'updated', ({ uri }) => uri);
on(types.ToolListChangedNotificationSchema, 'changed', () => 'tools');
on(types.PromptListChangedNotificationSchema, 'changed', () => 'prompts');

const transport = () => new StreamableHTTPClientTransport(new URL(process.argv[2]));
await client.connect(transport());
await walk(client, received, {
    notFound: -32002,
    // This SDK leaves pagination to its user.
    list: async (method, kind) => {
        const all = [];
        let cursor;
        do {
            const page = await client[method]({ cursor });
            all.push(...page[kind]);
            cursor = page.nextCursor;
        } while (cursor !== undefined);
        return all;
    },
    call: (params, options) => client.callTool(params, undefined, { onprogress: () => {}, ...options }),
    bare: async params => {
        const bare = new Client(INFO);
        await bare.connect(transport());
        return bare.callTool(params).finally(() => bare.close());
    },
    leveled: async (level, work) => {
        // Without a level, a server sends any log messages.
        const capable = client.getServerCapabilities()?.logging !== undefined;
        if (capable) await client.setLoggingLevel(level);
        return work({});
    },
    subscribe: async uri => {
        await client.subscribeResource({ uri });
        return () => client.unsubscribeResource({ uri });
    },
    // The GET stream has been open since the handshake.
    listen: async () => async () => {},
});
await client.close();
process.exit(0);
