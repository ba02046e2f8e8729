// The client of the modern era: the TypeScript SDK v2 over HTTP, which answers `input_required` and
// retries by itself.

import { require } from '../fixtures/house.mjs';
import { CAPABILITIES, Heard, INFO, QUESTIONS, answer, walk } from './walk.mjs';

const { Client, StreamableHTTPClientTransport } = require('@modelcontextprotocol/client');

const heard = new Heard();
const client = new Client(INFO, {
    capabilities: CAPABILITIES, versionNegotiation: { mode: { pin: '2026-07-28' } },
});
for (const question of QUESTIONS) {
    client.setRequestHandler(question, ({ method, params }) => answer(heard, method ?? question, params));
}
const on = (note, kind, what) =>
    client.setNotificationHandler(`notifications/${note}`, ({ params }) => heard.hear(kind, what(params ?? {})));
on('message', 'logs', ({ level, logger, data }) => ({ level, logger, data }));
on('progress', 'progress', ({ progress, total, message }) => ({ progress, total, message }));
on('resources/updated', 'updated', ({ uri }) => uri);
on('tools/list_changed', 'changed', () => 'tools');
on('prompts/list_changed', 'changed', () => 'prompts');

await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));
const listen = async filter => {
    const subscription = await client.listen(filter);
    return () => subscription.close();
};
await walk(client, heard, {
    notFound: -32602,
    // Without a cursor it walks the pages itself.
    list: async (method, kind) => (await client[method](undefined, { cacheMode: 'refresh' }))[kind],
    call: params => client.callTool(params, { onprogress: () => {} }),
    leveled: (level, work) => work({ _meta: { 'io.modelcontextprotocol/logLevel': level } }),
    subscribe: uri => listen({ resourceSubscriptions: [uri] }),
    listen: kind => listen({ [`${kind}ListChanged`]: true }),
});
await client.close();
process.exit(0);
