// Pages in Chromium that call Weir from another origin: `node pages.mjs FOLDER`, where FOLDER is that of the
// Inspector's web client.
//
// Serves the pages and prints their origin. Then it reads one line with a JSON object from standard input: `endpoint`
// is the URL of Weir's endpoint, `key` a client's key, `metadata` the URL of the resource metadata, and `tool` a tool
// without arguments. It prints one JSON object with what the pages have seen.

import { spawn } from 'node:child_process';
import { createServer } from 'node:http';
import { readFile } from 'node:fs/promises';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const folder = process.argv[2];
const types = { html: 'text/html', js: 'text/javascript', css: 'text/css', svg: 'image/svg+xml' };
const server = createServer(async (request, response) => {
    const path = new URL(request.url, 'http://x').pathname;
    if (path === '/empty') {
        response.setHeader('content-type', types.html);
        return response.end('<!doctype html><title>page</title>');
    }
    const file = path === '/' ? '/index.html' : path;
    const text = await readFile(join(folder, file)).catch(() => null);
    response.statusCode = text ? 200 : 404;
    response.setHeader('content-type', types[file.split('.').pop()] ?? 'text/plain');
    response.end(text);
});
await new Promise(ready => server.listen(0, '127.0.0.1', ready));
const { port } = server.address();
console.log(`http://127.0.0.1:${port}`);
const [line] = await createInterface(process.stdin)[Symbol.asyncIterator]().next().then(({ value }) => [value]);
const given = JSON.parse(line);

// Chromium, controlled over two pipes (Chrome DevTools Protocol): each message ends with a NUL.
const profile = mkdtempSync(join(tmpdir(), 'weir-pages-'));
const browser = spawn(
    fileURLToPath(new URL('../../../.cache/interop/bin/chromium', import.meta.url)),
    [
        '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run',
        '--disable-background-networking', `--user-data-dir=${profile}`, '--remote-debugging-pipe', 'about:blank',
    ],
    { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] },
);
const [to, from] = [browser.stdio[3], browser.stdio[4]];
const waiting = new Map();
let [received, sent] = ['', 0];
from.setEncoding('utf8').on('data', piece => {
    const messages = (received + piece).split('\0');
    received = messages.pop();
    for (const { id, result, error, method, sessionId } of messages.map(it => JSON.parse(it))) {
        // A response has an id; of the events, only the end of loading matters.
        const key = id ?? `${method} ${sessionId}`;
        waiting.get(key)?.(error ? Promise.reject(new Error(error.message)) : result);
        waiting.delete(key);
    }
});
function command(method, params = {}, sessionId) {
    return new Promise(ready => {
        sent += 1;
        waiting.set(sent, ready);
        to.write(`${JSON.stringify({ id: sent, method, params, sessionId })}\0`);
    });
}

// Opens a page; returns the function that runs another one in it, with JSON as its argument and its result.
async function page(url) {
    const { targetId } = await command('Target.createTarget', { url: 'about:blank' });
    const { sessionId } = await command('Target.attachToTarget', { targetId, flatten: true });
    const run = async (code, argument) => {
        const expression = `(${code})(${JSON.stringify(argument)})`;
        const { result, exceptionDetails } = await command(
            'Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true }, sessionId,
        );
        if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
        return result.value;
    };
    const navigate = async to => {
        const loaded = new Promise(ready => waiting.set(`Page.loadEventFired ${sessionId}`, ready));
        await command('Page.navigate', { url: to }, sessionId);
        await loaded;
    };
    await command('Page.enable', {}, sessionId);
    await navigate(url);
    return { run, navigate };
}

// Runs in the page: requests as a client of each era makes them. Each gives its status and the headers that the page
// may read, or the error of a browser that keeps the response from the page.
async function requests({ endpoint, key, metadata, tool }) {
    const seen = {};
    const send = async (name, url, method, headers, body) => {
        try {
            const response = await fetch(url, { method, headers, body: body && JSON.stringify(body) });
            const readable = ['mcp-session-id', 'www-authenticate', 'retry-after'];
            const text = method === 'GET' && response.ok ? '' : await response.text();
            seen[name] = {
                status: response.status,
                headers: readable.filter(it => response.headers.has(it)),
                text: text.includes('"result"') || text === '' ? '' : JSON.parse(text).error?.message,
            };
            return response.headers;
        } catch (error) {
            seen[name] = error.name;
            return new Headers();
        }
    };
    const plain = { accept: 'application/json, text/event-stream', 'content-type': 'application/json' };
    const keyed = { ...plain, authorization: `Bearer ${key}` };
    const message = (method, params) => ({ jsonrpc: '2.0', id: 1, method, params });
    const legacy = '2025-11-25';
    const initialize = message('initialize', {
        protocolVersion: legacy, capabilities: {}, clientInfo: { name: 'page', version: '1' },
    });
    await send('without a key', endpoint, 'POST', plain, initialize);
    const opened = await send('initialize', endpoint, 'POST', keyed, initialize);
    const session = {
        ...keyed, 'mcp-session-id': opened.get('mcp-session-id') ?? 'none', 'mcp-protocol-version': legacy,
    };
    await send('initialized', endpoint, 'POST', session, { jsonrpc: '2.0', method: 'notifications/initialized' });
    await send('legacy call', endpoint, 'POST', session, message('tools/call', { name: tool, arguments: {} }));
    await send('stream', endpoint, 'GET', session);
    await send('end', endpoint, 'DELETE', session);
    await send('after the end', endpoint, 'POST', session, message('ping', {}));
    const modern = '2026-07-28';
    const _meta = {
        'io.modelcontextprotocol/protocolVersion': modern, 'io.modelcontextprotocol/clientCapabilities': {},
        'io.modelcontextprotocol/clientInfo': { name: 'page', version: '1' },
    };
    const call = message('tools/call', { name: tool, arguments: {}, _meta });
    const headers = {
        ...keyed, 'mcp-protocol-version': modern, 'mcp-method': 'tools/call', 'mcp-name': tool,
        'Mcp-Param-Region': 'north', traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
    };
    await send('modern call', endpoint, 'POST', headers, call);
    await send('wrong type', endpoint, 'POST', { ...headers, 'content-type': 'text/plain' }, call);
    await send('wrong method', endpoint, 'PUT', headers, call);
    await send('other header', endpoint, 'POST', { ...headers, 'x-other': '1' }, call);
    await send('metadata', metadata, 'GET', { 'mcp-protocol-version': legacy });
    return seen;
}

// Runs in the page: presses the buttons of the Inspector, each as soon as it is there.
async function inspect({ tool }) {
    const there = find => new Promise(ready => {
        const look = () => {
            const found = find();
            if (found) {
                observer.disconnect();
                ready(found);
            }
        };
        const observer = new MutationObserver(look);
        observer.observe(document.documentElement, { subtree: true, childList: true, attributes: true, characterData: true });
        look();
    });
    const labelled = (tag, text) => there(() =>
        [...document.querySelectorAll(tag)].find(it => it.textContent.trim() === text && !it.disabled));
    const press = element => {
        for (const kind of ['pointerdown', 'mousedown', 'pointerup', 'mouseup', 'click']) {
            element.dispatchEvent(new MouseEvent(kind, { bubbles: true, button: 0 }));
        }
    };
    press(await labelled('button', 'Connect'));
    const state = await there(() => ['Connected', 'Connection Error'].find(text =>
        [...document.querySelectorAll('span')].some(it => it.textContent.startsWith(text))));
    if (state !== 'Connected') return state;
    press(await labelled('[role=tab]', 'Tools'));
    press(await labelled('button', 'List Tools'));
    press((await labelled('span', tool)));
    press(await labelled('button', 'Run Tool'));
    const result = await there(() => [...document.querySelectorAll('h4')].find(it => it.textContent.startsWith('Tool Result')));
    return result.textContent;
}

async function inspector(origin) {
    const { run, navigate } = await page(`${origin}/empty`);
    await run(`({ endpoint, key }) => {
        localStorage.setItem('lastConnectionType', 'direct');
        localStorage.setItem('lastTransportType', 'streamable-http');
        localStorage.setItem('lastSseUrl', endpoint);
        localStorage.setItem('lastCustomHeaders',
            JSON.stringify([{ name: 'Authorization', value: 'Bearer ' + key, enabled: true }]));
    }`, given);
    await navigate(`${origin}/`);
    return run(inspect, given);
}

const found = {};
try {
    // The first origin is in the configuration; the second is accepted only because it is a loopback name.
    for (const [name, host] of [['configured', '127.0.0.1'], ['loopback', 'localhost']]) {
        const origin = `http://${host}:${port}`;
        const { run } = await page(`${origin}/empty`);
        found[name] = { requests: await run(requests, given), inspector: await inspector(origin) };
    }
    await command('Browser.close');
} finally {
    browser.kill();
    await new Promise(ended => (browser.exitCode === null && browser.signalCode === null ? browser.once('exit', ended) : ended()));
    rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
}
console.log(JSON.stringify(found));
process.exit(0);
