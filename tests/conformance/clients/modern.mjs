// The client of the modern era: the TypeScript SDK v2 over HTTP, which responds to `input_required` and
// retries by itself.

import { require } from '../fixtures/http_host.mjs';
import { CAPABILITIES, Received, INFO, QUESTIONS, answer, walk } from './walk.mjs';

const { Client, StreamableHTTPClientTransport } = require('@modelcontextprotocol/client');

const received = new Received();
const MODERN = { versionNegotiation: { mode: { pin: '2026-07-28' } } };
const client = new Client(INFO, { capabilities: CAPABILITIES, ...MODERN });
for (const question of QUESTIONS) {
    client.setRequestHandler(question, ({ method, params }) => answer(received, method ?? question, params));
}
const on = (note, kind, what) =>
    client.setNotificationHandler(`notifications/${note}`, ({ params }) => received.record(kind, what(params ?? {})));
on('message', 'logs', ({ level, logger, data }) => ({ level, logger, data }));
on('progress', 'progress', ({ progress, total, message }) => ({ progress, total, message }));
on('resources/updated', 'updated', ({ uri }) => uri);
on('tools/list_changed', 'changed', () => 'tools');
on('prompts/list_changed', 'changed', () => 'prompts');

const transport = () => new StreamableHTTPClientTransport(new URL(process.argv[2]));
await client.connect(transport());
const listen = async filter => {
    const subscription = await client.listen(filter);
    return () => subscription.close();
};
await walk(client, received, {
    notFound: -32602,
    // Without a cursor the SDK follows the pages itself.
    list: async (method, kind) => (await client[method](undefined, { cacheMode: 'refresh' }))[kind],
    call: (params, options) => client.callTool(params, { onprogress: () => {}, ...options }),
    bare: async params => {
        const bare = new Client(INFO, MODERN);
        await bare.connect(transport());
        return bare.callTool(params).finally(() => bare.close());
    },
    leveled: (level, work) => work({ _meta: { 'io.modelcontextprotocol/logLevel': level } }),
    subscribe: uri => listen({ resourceSubscriptions: [uri] }),
    listen: kind => listen({ [`${kind}ListChanged`]: true }),
});
await client.close();
process.exit(0);
