// Server over stdio with names that model providers reject, and a growing list of tools.
//
// `grow` adds the tool `grown` and announces it; each other tool responds with its own name. The
// first answer comes after DELAY_MS milliseconds.

import { createInterface } from 'node:readline';

const tools = ['a.b', 'a/b', 'a b', 'a_b', 'grow', `long_${'x'.repeat(70)}_end`];
const send = (message) => process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`);

const answers = {
    initialize: ({ protocolVersion }) => ({
        protocolVersion,
        serverInfo: { name: 'names', version: '1' },
        capabilities: { tools: { listChanged: true }, prompts: {} },
    }),
    ping: () => ({}),
    'tools/list': () => ({
        tools: tools.map((name) => ({ name, description: `Says ${name}.`, inputSchema: { type: 'object' } })),
    }),
    'tools/call': ({ name }) => ({ content: [{ type: 'text', text: `this is <${name}>` }] }),
    'prompts/list': () => ({ prompts: [{ name: 'say.hello', description: 'Says hello.' }] }),
    'prompts/get': ({ name }) => ({
        messages: [{ role: 'user', content: { type: 'text', text: `prompt <${name}>` } }],
    }),
};

createInterface({ input: process.stdin }).on('line', (line) => {
    const { id, method, params } = JSON.parse(line);
    if (id === undefined || method === undefined) return;
    const answer = answers[method];
    if (!answer) return send({ id, error: { code: -32601, message: 'Method not found' } });
    const delay = method === 'initialize' ? Number(process.env.DELAY_MS ?? 0) : 0;
    if (delay > 0) return setTimeout(() => send({ id, result: answer(params) }), delay);
    send({ id, result: answer(params ?? {}) });
    if (method === 'tools/call' && params.name === 'grow' && !tools.includes('grown')) {
        tools.push('grown');
        send({ method: 'notifications/tools/list_changed' });
    }
});
