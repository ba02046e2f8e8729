// What the clients written for Node have in common: the contract that the README beside `parts` states.
//
// It reads the arguments, waits for the test where the contract says so, and walks the task with a
// client of either TypeScript SDK; their methods have the same names. What differs between the two
// (how to connect, to call with progress, to hear) is in `sdk1.mjs` and `sdk2.mjs`.
//
// Knows nothing of: the fleet, what is right.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

// Programs outside of a part's folder find its packages only like this.
export const requireFrom = part =>
    createRequire(new URL(`../../../../.cache/interop/${part}/`, import.meta.url));

export const task = JSON.parse(readFileSync(new URL(process.env.TASK ?? 'task.json', import.meta.url)));

// `--era legacy|modern --wire http|sse|stdio TARGET...`
export function told() {
    const [eraFlag, era, wireFlag, wire, ...target] = process.argv.slice(2);
    if (wireFlag !== '--wire' || eraFlag !== '--era' || target.length === 0) {
        throw new Error('usage: --era legacy|modern --wire http|sse|stdio URL | COMMAND [ARG...]');
    }
    return { wire, era, target };
}

// The test says `go` when the fleet is complete.
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

// Changes that were told of, to be waited for one at a time.
export class Changes {
    #told = 0;
    #wake = () => {};

    tell() {
        this.#told += 1;
        this.#wake();
    }

    async next() {
        while (this.#told === 0) {
            await new Promise(resolve => (this.#wake = resolve));
        }
        this.#told -= 1;
    }
}

// Counts the requests of one method that leave by this transport.
export function countSent(transport, method) {
    const counter = { sent: 0 };
    const send = transport.send.bind(transport);
    transport.send = (message, options) => {
        if (message.method === method) counter.sent += 1;
        return send(message, options);
    };
    return counter;
}

// What was told of the progress of each call. Both SDKs drop their own `onprogress` when the result is
// read, and hand on what came in the same piece of bytes only afterwards: so that takes the raw notes.
export class Progress {
    #byToken = new Map();

    take = ({ params: { progressToken, progress } }) => {
        const told = this.#byToken.get(progressToken) ?? [];
        this.#byToken.set(progressToken, [...told, progress]);
    };

    // In the order of the calls.
    ofCalls = () => [...this.#byToken.values()];
}

// Does the task with a connected client. `list(method, kind)` returns all that is listed, through all
// pages; `call(params, options)` calls a tool; `listen()` returns once a change would be heard.
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
        // Without this the SDK asks for no progress.
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
        // The SDK v1 puts the code into the words.
        ({ code, message }) => ({ code, message: message.replace(/^MCP error -?\d+: /, '') }),
    );

    await listen();
    waiting();
    // Upstreams that have just come up may be announced, too: listen until it is this change.
    do {
        await changes.next();
        seen.after = await names();
    } while (!seen.after.includes(task.awaited));

    progress.ofCalls().forEach((told, nth) => (seen.counted[task.count[nth].name].progress = told));
    return seen;
}
