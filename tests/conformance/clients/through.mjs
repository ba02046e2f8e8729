// The client that the suite judges: `weir stdio` with the suite's server as its upstream, and an SDK client
// of either era that uses it. Over stdio, because a server request on a stream that belongs to no call can be
// forwarded only where there is one client.
//
//   WEIR=PROGRAM node through.mjs legacy|modern URL
//
// It lists all items, calls every tool, gets every prompt and reads every resource, all at once. For some
// scenarios the suite sets a variable with the tools to call and their arguments, or with credentials.
// A failure does not stop the rest: the suite judges by the messages that its server received.

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

import { require } from '../fixtures/http_host.mjs';
import { CAPABILITIES, Received, INFO, QUESTIONS, answer } from './walk.mjs';

const { WEIR, MCP_CONFORMANCE_CONTEXT = '{}', MCP_CONFORMANCE_SCENARIO: SCENARIO = '' } = process.env;
const [ERA, UPSTREAM] = process.argv.slice(2);
const { toolCalls, ...credentials } = JSON.parse(MCP_CONFORMANCE_CONTEXT);

// The account at the suite's authorization server, as the scenario gives it.
function account(folder) {
    const { client_id, client_secret, private_key_pem: client_key, valid_jwt } = credentials;
    if (valid_jwt) {
        writeFileSync(join(folder, 'assertion'), valid_jwt);
        return { grant: 'jwt_bearer', 'assertion.file': 'assertion' };
    }
    const grant = SCENARIO.includes('client-credentials') ? 'client_credentials' : 'authorization_code';
    return { grant, client_id, client_secret, client_key };
}

// Lines of the configuration about the account.
function accountLines(folder) {
    if (!SCENARIO.startsWith('auth/')) return [];
    const keys = { type: 'oauth', ...account(folder) };
    const lines = Object.entries(keys).filter(([, value]) => value)
        .map(([key, value]) => `upstreams.suite.auth.${key} = ${JSON.stringify(value)}`);
    return [
        ...lines, 'sign_in.insecure_loopback = true', 'state.dir = "state"',
        'sign_in.client_metadata_url = "https://conformance-test.local/client-metadata.json"',
    ];
}

// Signs in with `weir login`: the suite's authorization server consents to everything. Returns whether that worked.
async function logIn(config) {
    const login = spawn(WEIR, ['login', 'suite', '--no-browser', '--config', config], { stdio: ['pipe', 'ignore', 'pipe'] });
    process.on('exit', () => login.kill());
    const ended = new Promise(resolve => login.on('exit', code => resolve(code === 0)));
    createInterface({ input: login.stderr }).on('line', async line => {
        console.error(line);
        if (!line.startsWith('http')) return;
        const consent = await fetch(line, { redirect: 'manual' });
        await fetch(consent.headers.get('location')).catch(() => {});
    });
    return ended;
}

// Runs Weir for one client, in a folder of its own, until `work` with the client is done. Weir ends with its
// stdin, so it does not outlive this program. Where Weir says that a user has to sign in again, one does.
async function withWeir(work) {
    const folder = mkdtempSync(join(tmpdir(), 'weir-judged-'));
    const config = join(folder, 'weir.toml');
    const lines = accountLines(folder);
    writeFileSync(config, `
        log.level = "info"
        log.format = "json"
        naming.mode = "none"
        upstreams.suite.url = ${JSON.stringify(UPSTREAM)}
        ${lines.join('\n        ')}
    `);
    const isOfUser = lines.some(line => line.includes('authorization_code'));
    if (isOfUser && !await logIn(config)) return;
    const { client, questions, Transport } = makeClient();
    const received = new Received();
    for (const [nth, question] of questions.entries()) {
        client.setRequestHandler(question, ({ params }) => answer(received, QUESTIONS[nth], params));
    }
    const weir = new Transport({ command: WEIR, args: ['stdio', '--config', config], stderr: 'pipe' });
    // This program does not outlive the suite, either.
    process.stdin.resume().on('end', () => process.exit(1));
    // Lists that the upstream has refused are read again after a sign-in, if that can help.
    let signingIn;
    const listed = new Promise(resolve => {
        createInterface({ input: weir.stderr }).on('line', async line => {
            console.error(line);
            if (JSON.parse(line).message === 'upstream listed') resolve();
            if (line.includes('was requested')) resolve();
            if (!isOfUser || signingIn || !line.includes('weir login')) return;
            signingIn = logIn(config);
            await signingIn;
            signingIn = undefined;
        });
    });
    try {
        await client.connect(weir);
        // This SDK probes the revision on one process, and starts the final one with its first request.
        await client.listTools().catch(() => {});
        await listed;
        await signingIn;
        const replies = await work(client);
        if (replies.some(reply => reply.includes('weir login')) && await logIn(config)) await work(client);
        await signingIn;
    } finally {
        await client.close();
        rmSync(folder, { recursive: true });
    }
}

function makeClient() {
    if (ERA === 'legacy') {
        const { Client } = require('@modelcontextprotocol/sdk/client/index.js');
        const { StdioClientTransport: Transport } = require('@modelcontextprotocol/sdk/client/stdio.js');
        const types = require('@modelcontextprotocol/sdk/types.js');
        const client = new Client(INFO, { capabilities: CAPABILITIES });
        const schemas = [types.ElicitRequestSchema, types.CreateMessageRequestSchema, types.ListRootsRequestSchema];
        return { client, questions: schemas, Transport };
    }
    const { Client } = require('@modelcontextprotocol/client');
    const { StdioClientTransport: Transport } = require('@modelcontextprotocol/client/stdio');
    const client = new Client(INFO, { capabilities: CAPABILITIES, versionNegotiation: { mode: { pin: '2026-07-28' } } });
    return { client, questions: QUESTIONS, Transport };
}

const invented = ({ type, 'x-mcp-header': header, default: usual }) =>
    usual ?? { number: 2, integer: 3, boolean: true, object: {}, array: [] }[type] ?? `some ${header ?? 'text'}`;

function callsFor(tools) {
    if (toolCalls) return toolCalls;
    return tools.map(({ name, inputSchema: { properties = {} } }) => {
        const given = Object.entries(properties).map(([key, schema]) => [key, invented(schema)]);
        // This tool echoes the schema that the client received of another tool.
        const schema = tools.find(tool => tool.name === 'json_schema_2020_12_tool')?.inputSchema;
        return { name, arguments: name === 'json_schema_echo' ? { schema } : Object.fromEntries(given) };
    });
}

await withWeir(async client => {
    const listed = async (method, kind) => (await client[method]().catch(() => ({})))[kind] ?? [];
    const [tools, prompts, resources] = [
        await listed('listTools', 'tools'), await listed('listPrompts', 'prompts'), await listed('listResources', 'resources'),
    ];
    const done = await Promise.allSettled([
        ...callsFor(tools).map(call => client.callTool(call)),
        ...prompts.map(({ name }) => client.getPrompt({ name })),
        ...resources.map(({ uri }) => client.readResource({ uri })),
    ]);
    const replies = done.map(({ value, reason }) => reason?.message ?? JSON.stringify(value));
    for (const reply of replies) console.log(reply);
    return replies;
});
process.exit(0);
