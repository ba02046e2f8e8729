// The client that the suite judges: Weir with the suite's server as its upstream, and an SDK client of
// either era that makes it work.
//
//   WEIR=PROGRAM node through.mjs legacy|modern URL
//
// It lists what there is, calls every tool, gets every prompt and reads every resource, all at once. For
// some scenarios the suite says by a variable which tools to call with what.
// What fails does not stop the rest: the suite judges by what its server was sent.

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

import { pause, require } from '../fixtures/house.mjs';
import { CAPABILITIES, Heard, INFO, QUESTIONS, answer } from './walk.mjs';

const { WEIR, MCP_CONFORMANCE_CONTEXT = '{}' } = process.env;
const [ERA, UPSTREAM] = process.argv.slice(2);
const { toolCalls } = JSON.parse(MCP_CONFORMANCE_CONTEXT);

const PATIENCE_MS = 3000;

// Runs Weir in a folder of its own, until `work` with its endpoint is done.
async function withWeir(work) {
    const folder = mkdtempSync(join(tmpdir(), 'weir-judged-'));
    writeFileSync(join(folder, 'weir.toml'), `
        server.listen = "127.0.0.1:0"
        log.format = "json"
        naming.mode = "none"
        upstreams.suite.url = ${JSON.stringify(UPSTREAM)}
    `);
    const weir = spawn(WEIR, ['serve', '--config', join(folder, 'weir.toml')], { stdio: ['ignore', 'ignore', 'pipe'] });
    const ended = new Promise(resolve => weir.on('exit', resolve));
    // Weir does not outlive this program, nor this program the suite.
    process.on('exit', () => weir.kill('SIGTERM'));
    process.on('SIGTERM', () => process.exit(1));
    process.stdin.resume().on('end', () => process.exit(1));
    const said = {};
    const listed = new Promise(resolve => {
        createInterface({ input: weir.stderr }).on('line', line => {
            console.error(line);
            const { message, ...rest } = JSON.parse(line);
            said[message] = rest;
            if (message === 'listed') resolve();
        });
    });
    try {
        // A server that first has to be asked twice comes a moment later, and some is never right.
        await Promise.race([listed, pause(PATIENCE_MS)]);
        await work(said.ready.endpoint);
    } finally {
        weir.kill('SIGTERM');
        await ended;
        rmSync(folder, { recursive: true });
    }
}

function makeClient() {
    if (ERA === 'legacy') {
        const { Client } = require('@modelcontextprotocol/sdk/client/index.js');
        const { StreamableHTTPClientTransport } = require('@modelcontextprotocol/sdk/client/streamableHttp.js');
        const types = require('@modelcontextprotocol/sdk/types.js');
        const client = new Client(INFO, { capabilities: CAPABILITIES });
        const schemas = [types.ElicitRequestSchema, types.CreateMessageRequestSchema, types.ListRootsRequestSchema];
        return { client, questions: schemas, Transport: StreamableHTTPClientTransport };
    }
    const { Client, StreamableHTTPClientTransport } = require('@modelcontextprotocol/client');
    const client = new Client(INFO, { capabilities: CAPABILITIES, versionNegotiation: { mode: { pin: '2026-07-28' } } });
    return { client, questions: QUESTIONS, Transport: StreamableHTTPClientTransport };
}

const invented = ({ type, 'x-mcp-header': header, default: usual }) =>
    usual ?? { number: 2, integer: 3, boolean: true, object: {}, array: [] }[type] ?? `some ${header ?? 'text'}`;

function callsFor(tools) {
    if (toolCalls) return toolCalls;
    return tools.map(({ name, inputSchema: { properties = {} } }) => {
        const given = Object.entries(properties).map(([key, schema]) => [key, invented(schema)]);
        // This one sends back what its client was told of another.
        const told = tools.find(tool => tool.name === 'json_schema_2020_12_tool')?.inputSchema;
        return { name, arguments: name === 'json_schema_echo' ? { schema: told } : Object.fromEntries(given) };
    });
}

await withWeir(async endpoint => {
    const { client, questions, Transport } = makeClient();
    const heard = new Heard();
    for (const [nth, question] of questions.entries()) {
        client.setRequestHandler(question, ({ params }) => answer(heard, QUESTIONS[nth], params));
    }
    await client.connect(new Transport(new URL(endpoint)));
    const listed = async (method, kind) => (await client[method]().catch(() => ({})))[kind] ?? [];
    const [tools, prompts, resources] = [
        await listed('listTools', 'tools'), await listed('listPrompts', 'prompts'), await listed('listResources', 'resources'),
    ];
    const done = await Promise.allSettled([
        ...callsFor(tools).map(call => client.callTool(call)),
        ...prompts.map(({ name }) => client.getPrompt({ name })),
        ...resources.map(({ uri }) => client.readResource({ uri })),
    ]);
    for (const { value, reason } of done) console.log(reason?.message ?? JSON.stringify(value));
    await client.close();
});
process.exit(0);
