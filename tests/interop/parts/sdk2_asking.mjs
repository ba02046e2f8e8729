// A server of the TypeScript SDK v2 that sends input requests in mid-call, in both eras, for the interop tests.
//
//   node sdk2_asking.mjs stdio          one client on stdin and stdout, of the era of its first message
//   node sdk2_asking.mjs http           Streamable HTTP on loopback, on a free port
//
// Its tools send input requests (`ask`, `sample`, `roots`, and `interview`, which sends two and keeps a
// state between), log messages (`log`) and resource updates to subscribers (`touch`). A tool is written once
// for both eras: the SDK turns its input requests into server requests for a legacy client. For those, and
// for notifications, such a client needs a session: over HTTP this server keeps the sessions, which the SDK
// leaves to its users.
//
// Over HTTP it prints one line, `listening on http://127.0.0.1:PORT/mcp`, once its port is bound.

import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';

const require = createRequire(new URL('../../../.cache/interop/npm/', import.meta.url));
const { McpServer, completable, createMcpHandler, inputRequired, isLegacyRequest } = require('@modelcontextprotocol/server');
const { serveStdio } = require('@modelcontextprotocol/server/stdio');
const { NodeStreamableHTTPServerTransport, toNodeHandler, toWebRequest } = require('@modelcontextprotocol/node');
const { z } = require('zod');

const PORTS = 'tides://ports';
const NAME = { message: 'Who are you?', requestedSchema: { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] } };
const THOUGHT = { messages: [{ role: 'user', content: { type: 'text', text: 'What is a weir?' } }], maxTokens: 9 };

const said = text => ({ content: [{ type: 'text', text }] });
// Sorted, because the SDK parses a response into another order in each era.
const sorted = (_, value) =>
    value?.constructor === Object ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1))) : value;
const responseText = answer => said(JSON.stringify(answer, sorted));

// Subscribed resources of each legacy client, by server.
const subscribed = new Map();
let tellModern = () => {};

async function notify(uri) {
    tellModern(uri);
    const servers = [...subscribed].filter(([, uris]) => uris.has(uri)).map(([server]) => server);
    await Promise.all(servers.map(({ server }) => server.sendResourceUpdated({ uri })));
}

function makeServer({ era }) {
    const server = new McpServer(
        { name: 'weir-interop-asking', version: '1.0.0' },
        { capabilities: { logging: {}, resources: { subscribe: true } } },
    );
    const tool = (name, does, inputSchema = z.object({})) =>
        server.registerTool(name, { description: `Does what it says: ${name}.`, inputSchema }, does);
    // Sends one input request, and returns a text with the response.
    const asks = (name, question) =>
        tool(name, (_, { mcpReq }) => {
            const answer = mcpReq.inputResponses?.answer;
            return answer ? responseText(answer) : inputRequired({ inputRequests: { answer: question } });
        });
    asks('ask', inputRequired.elicit(NAME));
    asks('sample', inputRequired.createMessage(THOUGHT));
    asks('roots', inputRequired.listRoots());
    tool('interview', (_, { mcpReq }) => {
        const { inputResponses: given } = mcpReq;
        const state = mcpReq.requestState?.();
        if (given?.second) return responseText([JSON.parse(state), given.second]);
        const asks = given?.first
            ? { inputRequests: { second: inputRequired.elicit(NAME) }, requestState: JSON.stringify(given.first) }
            : { inputRequests: { first: inputRequired.elicit(NAME) } };
        return inputRequired(asks);
    });
    tool(
        'log',
        async ({ levels }, { mcpReq }) => {
            for (const level of levels) await mcpReq.log(level, { said: `at ${level}` }, 'gauge');
            return said('logged');
        },
        z.object({ levels: z.array(z.string()) }),
    );
    tool(
        'touch',
        async ({ uri }) => {
            // Over stdio the SDK notifies its modern client, too, if it listens.
            await (wire === 'stdio' ? server.server.sendResourceUpdated({ uri }) : notify(uri));
            return said(`touched ${uri}`);
        },
        z.object({ uri: z.string() }),
    );
    tool('wait', async (_, { mcpReq }) => {
        const progressToken = mcpReq._meta?.progressToken;
        if (progressToken !== undefined) {
            await mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress: 1, total: 2 } });
        }
        await new Promise(resolve => mcpReq.signal.addEventListener('abort', resolve));
        return said('cancelled');
    });
    const port = completable(z.string(), typed => ['Delfzijl', 'Harlingen'].filter(port => port.startsWith(typed)));
    server.registerPrompt('tide-table', { argsSchema: z.object({ port }) }, ({ port }) => ({
        messages: [{ role: 'user', content: { type: 'text', text: `Make a table of the tides in ${port}.` } }],
    }));
    server.registerPrompt('mooring', { description: 'Takes no arguments.' }, () => ({
        messages: [{ role: 'user', content: { type: 'text', text: 'How does one moor?' } }],
    }));
    server.registerResource('ports', PORTS, { mimeType: 'text/plain' }, uri => ({
        contents: [{ uri: uri.href, mimeType: 'text/plain', text: 'Delfzijl' }],
    }));
    if (era === 'legacy') {
        const uris = new Set();
        server.server.setRequestHandler('resources/subscribe', ({ params }) => (uris.add(params.uri), {}));
        server.server.setRequestHandler('resources/unsubscribe', ({ params }) => (uris.delete(params.uri), {}));
        subscribed.set(server, uris);
    }
    return server;
}

// Legacy sessions, by id.
const sessions = new Map();

async function open() {
    const transport = new NodeStreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: id => sessions.set(id, transport),
        onsessionclosed: id => sessions.delete(id),
    });
    const server = makeServer({ era: 'legacy' });
    await server.connect(transport);
    server.server.onclose = () => subscribed.delete(server);
    return transport;
}

async function serveLegacy(request, response, body) {
    const id = request.headers['mcp-session-id'];
    if (id !== undefined && !sessions.has(id)) {
        response.writeHead(404).end();
        return;
    }
    const transport = sessions.get(id) ?? (await open());
    await transport.handleRequest(request, response, body);
}

async function bodyOf(request) {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    return chunks.length > 0 ? JSON.parse(Buffer.concat(chunks).toString()) : undefined;
}

const [wire] = process.argv.slice(2);
if (wire === 'stdio') {
    serveStdio(makeServer);
} else if (wire === 'http') {
    const handler = createMcpHandler(makeServer, { legacy: 'reject' });
    tellModern = uri => handler.notify.resourceUpdated(uri);
    const serveModern = toNodeHandler(handler);
    const listener = createServer(async (request, response) => {
        const body = await bodyOf(request);
        const isLegacy = await isLegacyRequest(await toWebRequest(request, body), body);
        await (isLegacy ? serveLegacy : serveModern)(request, response, body);
    });
    listener.listen(0, '127.0.0.1', () => {
        console.log(`listening on http://127.0.0.1:${listener.address().port}/mcp`);
    });
} else {
    console.error('usage: sdk2_asking.mjs stdio | http');
    process.exit(2);
}
