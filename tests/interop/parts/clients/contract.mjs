// Common part of the clients written for Node: the contract that the README beside `parts` describes.
//
// It parses the arguments, waits for the test where the contract says so, and does the task with a client of
// either TypeScript SDK; their methods have equal names. The differences between the two (connection, calls
// with progress, notifications) are in `sdk1.mjs` and `sdk2.mjs`.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

// Programs outside of a part's folder can import its packages only this way.
export const requireFrom = part =>
    createRequire(new URL(`../../../../.cache/interop/${part}/`, import.meta.url));

export const task = JSON.parse(readFileSync(new URL(process.env.TASK ?? 'task.json', import.meta.url)));

// `--era legacy|modern --wire http|sse|stdio TARGET...`
export function parsedArguments() {
    const [eraFlag, era, wireFlag, wire, ...target] = process.argv.slice(2);
    if (wireFlag !== '--wire' || eraFlag !== '--era' || target.length === 0) {
        throw new Error('usage: --era legacy|modern --wire http|sse|stdio URL | COMMAND [ARG...]');
    }
    return { wire, era, target };
}

// The test sends `go` when the fleet is complete.
export async function go() {
    const lines = createInterface({ input: process.stdin });
    for await (const line of lines) {
        if (line === 'go') break;
    }
    lines.close();
}

export const waiting = () => console.log('waiting for a change');
export const report = seen => console.log(JSON.stringify(seen));

export const texts = got => got.messages.map(message => message.content.text);

// Change notifications, which can be awaited one at a time.
export class Changes {
    #pending = 0;
    #wake = () => {};

    notify() {
        this.#pending += 1;
        this.#wake();
    }

    async next() {
        while (this.#pending === 0) {
            await new Promise(resolve => (this.#wake = resolve));
        }
        this.#pending -= 1;
    }
}

// Counts the requests of one method that this transport sends.
export function countSent(transport, method) {
    const counter = { sent: 0 };
    const send = transport.send.bind(transport);
    transport.send = (message, options) => {
        if (message.method === method) counter.sent += 1;
        return send(message, options);
    };
    return counter;
}

// Progress of each call. Both SDKs drop their own `onprogress` when the result is read, and dispatch
// notifications from the same chunk only afterwards: so this class uses the raw notifications.
export class Progress {
    #byToken = new Map();

    take = ({ params: { progressToken, progress } }) => {
        const reported = this.#byToken.get(progressToken) ?? [];
        this.#byToken.set(progressToken, [...reported, progress]);
    };

    // In the order of the calls.
    ofCalls = () => [...this.#byToken.values()];
}

// Does the task with a connected client. `list(method, kind)` returns all items, from all pages;
// `call(params, options)` calls a tool; `listen()` returns once a change would be received.
export async function walk(client, { list, call, listen, changes, pages, progress }) {
    const names = async () => (await list('listPrompts', 'prompts')).map(prompt => prompt.name);
    const seen = { prompts: await names(), pages: pages.sent };
    await names();
    seen.again = pages.sent - seen.pages;

    seen.got = {};
    for (const get of task.get) {
        seen.got[get.name] = texts(await client.getPrompt(get));
    }
    seen.completed = {};
    for (const ask of task.complete) {
        const { completion } = await client.complete(ask);
        seen.completed[ask.ref.name ?? ask.ref.uri] = completion.values;
    }

    seen.tools = (await list('listTools', 'tools')).map(tool => tool.name);
    seen.structured = {};
    for (const tool of task.call) {
        seen.structured[tool.name] = (await call(tool)).structuredContent;
    }
    seen.counted = {};
    for (const tool of task.count) {
        // Without this the SDK requests no progress.
        const result = await call(tool, { onprogress: () => {} });
        seen.counted[tool.name] = { said: result.content[0].text };
    }

    seen.resources = (await list('listResources', 'resources')).map(resource => resource.uri);
    seen.templates = (await list('listResourceTemplates', 'resourceTemplates')).map(
        template => template.uriTemplate,
    );
    seen.read = {};
    for (const uri of task.read) {
        seen.read[uri] = (await client.readResource({ uri })).contents[0].text;
    }
    seen.unknown = await client.getPrompt({ name: task.unknown }).then(
        () => 'a prompt',
        // The SDK v1 puts the code into the text.
        ({ code, message }) => ({ code, message: message.replace(/^MCP error -?\d+: /, '') }),
    );

    await listen();
    waiting();
    // Upstreams that have just connected may be announced, too: wait for this change.
    do {
        await changes.next();
        seen.after = await names();
    } while (!seen.after.includes(task.awaited));

    progress.ofCalls().forEach((reported, nth) => (seen.counted[task.count[nth].name].progress = reported));
    return seen;
}
