// Server over stdio that fetches a page before it serves, as one that checks its token does.
//
//     node fetching_server.mjs URL

import { createInterface } from 'node:readline';

const page = await fetch(process.argv[2]).catch((error) => {
    console.error(`the page cannot be fetched: ${error.cause?.code ?? error}`);
    process.exit(1);
});
const text = await page.text();

const answers = {
    initialize: ({ protocolVersion }) => ({
        protocolVersion,
        serverInfo: { name: 'fetching', version: '1' },
        capabilities: { tools: {} },
    }),
    ping: () => ({}),
    'tools/list': () => ({
        tools: [{ name: 'fetched', description: `It says ${text}.`, inputSchema: { type: 'object' } }],
    }),
};

createInterface({ input: process.stdin }).on('line', (line) => {
    const { id, method, params } = JSON.parse(line);
    if (id === undefined || method === undefined) return;
    const answer = answers[method];
    const rest = answer
        ? { result: answer(params ?? {}) }
        : { error: { code: -32601, message: 'Method not found' } };
    process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', id, ...rest })}\n`);
});
