// A server of the TypeScript SDK v2 for both eras, for the interop tests.
//
//   node sdk2_server.mjs stdio          one client on stdin and stdout, of the era of its first message
//   node sdk2_server.mjs http [PORT]    Streamable HTTP on loopback; 0, the default, takes a free port
//
// It offers prompts (with arguments and their completion), tools, resources and a resource template with
// completion. Its tools `add_prompt` and `remove_prompt` change its list, and it notifies as the SDK does:
// unsolicited to a legacy client over stdio, to modern clients on their `subscriptions/listen`. Over HTTP the
// SDK creates a server per request, so a legacy client has no session there and receives no notification.
//
// Over HTTP it prints one line, `listening on http://127.0.0.1:PORT/mcp`, once its port is bound.

import { createServer } from 'node:http';
import { createRequire } from 'node:module';

const require = createRequire(new URL('../../../.cache/interop/npm/', import.meta.url));
const { McpServer, ResourceTemplate, completable, createMcpHandler } = require('@modelcontextprotocol/server');
const { serveStdio } = require('@modelcontextprotocol/server/stdio');
const { toNodeHandler } = require('@modelcontextprotocol/node');
const { z } = require('zod');

const PORTS = ['Delfzijl', 'Den Helder', 'Den Oever', 'Harlingen', 'Vlissingen'];
const beginningWith = typed => PORTS.filter(port => port.toLowerCase().startsWith(typed.toLowerCase()));

const said = text => ({ content: [{ type: 'text', text }] });
const asked = text => ({ messages: [{ role: 'user', content: { type: 'text', text } }] });
const read = (uri, text) => ({ contents: [{ uri: uri.href, mimeType: 'text/plain', text }] });

// Prompts of `add_prompt`: a server that is created later lists them, too.
const added = new Set();
let tellOfPrompts = () => {};

function addPrompt(server, name) {
    const config = { description: 'Added at run time.', argsSchema: z.object({ topic: z.string() }) };
    return server.registerPrompt(name, config, ({ topic }) => asked(`${name}: ${topic}`));
}

function makeServer() {
    const server = new McpServer(
        { name: 'weir-interop-sdk2', version: '1.0.0' },
        { instructions: 'Ask for the tides politely.' },
    );
    const handles = new Map();

    const port = completable(z.string().describe('Where'), beginningWith);
    server.registerPrompt(
        'tide-table',
        { title: 'Tide table', argsSchema: z.object({ port, day: z.string().optional() }) },
        ({ port, day = 'today' }) => asked(`Make a table of the tides in ${port}, ${day}.`),
    );
    server.registerPrompt('mooring', { description: 'Takes no arguments.' }, () => asked('How does one moor?'));
    for (const name of added) {
        handles.set(name, addPrompt(server, name));
    }

    server.registerTool(
        'depth',
        {
            description: 'How deep the water is.',
            inputSchema: z.object({ port: z.string(), metres: z.number() }),
            outputSchema: z.object({ port: z.string(), metres: z.number() }),
            annotations: { readOnlyHint: true },
        },
        depth => ({ ...said(JSON.stringify(depth)), structuredContent: depth }),
    );
    server.registerTool(
        'count',
        { description: 'Counts, reporting progress at each step.', inputSchema: z.object({ steps: z.number() }) },
        async ({ steps }, context) => {
            const progressToken = context.mcpReq._meta?.progressToken;
            for (let step = 1; step <= steps && progressToken !== undefined; step++) {
                const params = { progressToken, progress: step, total: steps, message: `step ${step}` };
                await context.mcpReq.notify({ method: 'notifications/progress', params });
            }
            return said(`counted to ${steps}`);
        },
    );
    server.registerTool(
        'wait',
        { description: 'Tells of its progress once, and waits to be cancelled.', inputSchema: z.object({}) },
        async (_, { mcpReq }) => {
            const progressToken = mcpReq._meta?.progressToken;
            if (progressToken !== undefined) {
                const params = { progressToken, progress: 1, total: 2 };
                await mcpReq.notify({ method: 'notifications/progress', params });
            }
            await new Promise(resolve => mcpReq.signal.addEventListener('abort', resolve));
            return said('cancelled');
        },
    );
    server.registerTool(
        'add_prompt',
        { description: 'Adds a prompt with one argument, `topic`.', inputSchema: z.object({ name: z.string() }) },
        ({ name }) => {
            added.add(name);
            handles.set(name, addPrompt(server, name));
            tellOfPrompts();
            return said(`added prompt ${name}`);
        },
    );
    server.registerTool(
        'remove_prompt',
        { description: 'Removes a prompt again.', inputSchema: z.object({ name: z.string() }) },
        ({ name }) => {
            added.delete(name);
            handles.get(name)?.remove();
            tellOfPrompts();
            return said(`removed prompt ${name}`);
        },
    );

    server.registerResource(
        'ports', 'tides://ports', { description: 'Every port that is known.', mimeType: 'text/plain' },
        uri => read(uri, PORTS.join('\n')),
    );
    server.registerResource(
        'tide', new ResourceTemplate('tides://{port}/now', { list: undefined, complete: { port: beginningWith } }),
        { description: 'The tide in one port.', mimeType: 'text/plain' },
        (uri, { port }) => read(uri, `${decodeURIComponent(port)}: rising`),
    );
    return server;
}

const [wire, number = '0'] = process.argv.slice(2);
if (wire === 'stdio') {
    serveStdio(makeServer);
} else if (wire === 'http') {
    const handler = createMcpHandler(makeServer);
    tellOfPrompts = () => handler.notify.promptsChanged();
    const answer = toNodeHandler(handler);
    const listener = createServer((request, response) => {
        if (request.url === '/mcp') {
            void answer(request, response);
        } else {
            response.writeHead(404).end();
        }
    });
    listener.listen(Number(number), '127.0.0.1', () => {
        console.log(`listening on http://127.0.0.1:${listener.address().port}/mcp`);
    });
} else {
    console.error('usage: sdk2_server.mjs stdio | http [PORT]');
    process.exit(2);
}
