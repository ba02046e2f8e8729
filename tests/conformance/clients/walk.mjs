// The walk of both clients: it uses everything that the fixtures offer, and records all notifications.
//
//   node legacy.mjs|modern.mjs URL
//
// It prints one document on one line: by step, the client's observations. The document does not depend on the
// era or on the number of hops; `../values.json` is the expected one. A step that fails or takes too long is
// its error there, and the next one runs.
//
// The client responds to input requests as their schema or their text requires, with values that only it knows.

import { createHash } from 'node:crypto';

const PATIENCE_MS = 50_000;
// Wait for messages that must not come.
const SILENCE_MS = 300;

const pause = ms => new Promise(resolve => setTimeout(resolve, ms));
const sorted = (list, key) => list.toSorted((a, b) => (a[key] < b[key] ? -1 : 1));
const sum = text => createHash('sha256').update(text).digest('hex');
const decoded = base64 => Buffer.from(base64, 'base64').toString();

export const INFO = { name: 'conformance-client', version: '1.0.0' };
export const CAPABILITIES = {
    elicitation: { form: {}, url: {} },
    sampling: {},
    roots: { listChanged: true },
    extensions: { 'io.modelcontextprotocol/ui': { mimeTypes: ['text/html;profile=mcp-app'] } },
};

// Requests and notifications received since the last `take`.
export class Received {
    #notes = { asked: [], logs: [], progress: [], updated: [], changed: [] };
    #wake = () => {};

    record(kind, what) {
        this.#notes[kind].push(what);
        this.#wake();
    }

    // Only kinds with messages.
    take() {
        const notes = this.#notes;
        this.#notes = Object.fromEntries(Object.keys(notes).map(kind => [kind, []]));
        return Object.fromEntries(Object.entries(notes).filter(([, received]) => received.length > 0));
    }

    // Resolves once a matching message of this kind was received.
    async until(kind, fits) {
        while (!this.#notes[kind].some(fits)) {
            await new Promise(resolve => (this.#wake = resolve));
        }
    }
}

// === Responses ===

const chosen = ({ type, enum: values, oneOf, items, ...schema }, key) => {
    if (schema.default !== undefined) return schema.default;
    if (values) return values[1];
    if (oneOf) return oneOf[1].const;
    if (items) return [items.enum?.[2] ?? items.anyOf[2].const];
    return { boolean: true, number: 0.5, integer: 7 }[type] ?? `${key} of the client`;
};

const ANSWERS = {
    'elicitation/create': ({ message, url, requestedSchema: { properties } = {} }) => {
        if (message.startsWith('decline')) return { action: 'decline' };
        if (url) return { action: 'accept' };
        const content = Object.entries(properties).map(([key, schema]) => [key, chosen(schema, key)]);
        return { action: 'accept', content: Object.fromEntries(content) };
    },
    'sampling/createMessage': ({ messages }) => ({
        role: 'assistant', model: 'none', stopReason: 'endTurn',
        content: { type: 'text', text: `the client's thoughts on ${[messages].flat().at(-1).content.text}` },
    }),
    'roots/list': () => ({ roots: [{ uri: 'file:///moored', name: 'Moored' }, { uri: 'file:///afloat', name: 'Afloat' }] }),
};

export const QUESTIONS = Object.keys(ANSWERS);
export function answer(received, method, params) {
    // The name of a form, and the id of a URL elicitation, belong to the connection.
    const { _meta, mode, elicitationId, ...asked } = params ?? {};
    received.record('asked', { method, ...(Object.keys(asked).length > 0 && { params: asked }) });
    return ANSWERS[method](params);
}

// === Observations ===

// Without members that belong to the hop.
function own(result) {
    if (typeof result !== 'object' || Array.isArray(result)) return result;
    const { _meta, resultType, ttlMs, cacheScope, ...rest } = result;
    return rest;
}

// With bytes decoded as text, and long lines replaced by their hash.
function plain(value) {
    if (typeof value === 'string') return value.replace(/.{1000,}/g, line => `${line.length} characters, ${sum(line)}`);
    if (Array.isArray(value)) return value.map(plain);
    if (typeof value !== 'object' || value === null) return value;
    const areBytes = (key, inner) => ['data', 'blob'].includes(key) && typeof inner === 'string' && value.mimeType !== undefined;
    const entries = Object.entries(value);
    return Object.fromEntries(entries.map(([key, inner]) => [key, areBytes(key, inner) ? decoded(inner) : plain(inner)]));
}

const isLasting = ({ name }) => !name?.startsWith('test_changing_');
const changing = list => list.filter(item => !isLasting(item)).map(({ name }) => name);
const codeOf = promise => promise.then(() => 'no error', ({ code }) => code);

const CALLS = {
    test_sampling: { prompt: 'a prompt' },
    test_elicitation: { message: 'a message' },
    test_custom_header: { region: 'Wadden Sea, Ööst', depth: 12 },
};
const NOT_CALLED = ['test_trigger_', 'test_missing_capability', 'test_wait', 'test_cancelled'];

// `client` has the methods of both SDKs; `dialect` has the differences between the two:
// `list(method, kind)`, `call(params, options)` with progress, `bare(params)`, a call of a client that declared
// nothing, `leveled(level, work)`, `subscribe(uri)` → its end, `listen(kind)` → its end, `notFound`: the code
// for an unknown resource.
export async function walk(client, received, dialect) {
    const seen = {};
    async function step(name, work) {
        received.take();
        const late = pause(PATIENCE_MS).then(() => { throw new Error('nothing came'); });
        try {
            const result = await Promise.race([work(), late]);
            // An SDK may deliver a notification after the result that it came with.
            await pause(0);
            seen[name] = { result: plain(own(result)), ...plain(received.take()) };
        } catch (error) {
            seen[name] = { failed: error.message, ...plain(received.take()) };
        }
    }
    const { list, call, bare, leveled, subscribe, listen, notFound } = dialect;

    await step('instructions', async () => client.getInstructions() ?? 'none');
    await step('capabilities', async () => client.getServerCapabilities());

    let tools = [];
    await step('list tools', async () => (tools = sorted(await list('listTools', 'tools'), 'name').filter(isLasting)));
    await step('list prompts', async () => sorted(await list('listPrompts', 'prompts'), 'name').filter(isLasting));
    await step('list resources', async () => sorted(await list('listResources', 'resources'), 'uri'));
    await step('list templates', () => list('listResourceTemplates', 'resourceTemplates'));

    for (const { name } of tools) {
        if (NOT_CALLED.some(skipped => name.startsWith(skipped))) continue;
        // The order of concurrent input requests is not defined.
        await step(`call ${name}`, () => leveled('info', meta => call({ name, arguments: CALLS[name] ?? {}, ...meta })));
        seen[`call ${name}`].asked?.sort((a, b) => (a.method < b.method ? -1 : 1));
    }
    await step('call by a bare client', () => bare({ name: 'test_input_required_result_capabilities', arguments: {} }));
    await step('call and decline', () => call({ name: 'test_elicitation', arguments: { message: 'decline this' } }));
    await step('call many at once', async () => {
        const many = Array.from({ length: 10 }, (_, nth) => call({ name: 'test_sampling', arguments: { prompt: `prompt ${nth}` } }));
        const said = (await Promise.all(many)).map(result => result.content[0].text);
        received.take();
        return said;
    });
    await step('call with few logs', () => leveled('error', meta => call({ name: 'test_tool_with_logging', arguments: {}, ...meta })));

    await step('call without logs', () => leveled('emergency', meta => call({ name: 'test_tool_with_logging', arguments: {}, ...meta })));
    await step('cancel', async () => {
        const stop = new AbortController();
        const waiting = call({ name: 'test_wait', arguments: {} }, { signal: stop.signal });
        await received.until('progress', () => true);
        received.take();
        stop.abort();
        await waiting.catch(() => {});
        // Change notifications may come on another stream.
        for (;;) {
            const { content: [{ text }] } = await call({ name: 'test_cancelled', arguments: {} });
            if (text.endsWith('1')) return text;
            await pause(50);
        }
    });

    await step('get simple', () => client.getPrompt({ name: 'test_simple_prompt' }));
    await step('get with arguments', () => client.getPrompt({ name: 'test_prompt_with_arguments', arguments: { arg1: 'one', arg2: 'two' } }));
    await step('get with resource', () => client.getPrompt({
        name: 'test_prompt_with_embedded_resource', arguments: { resourceUri: 'test://static-text' },
    }));
    await step('get with image', () => client.getPrompt({ name: 'test_prompt_with_image' }));
    await step('get with question', () => client.getPrompt({ name: 'test_input_required_result_prompt' }));

    await step('read text', () => client.readResource({ uri: 'test://static-text' }));
    await step('read binary', () => client.readResource({ uri: 'test://static-binary' }));
    await step('read by template', () => client.readResource({ uri: 'test://template/a%20b/data' }));

    await step('read with question', () => client.readResource({ uri: 'test://with-question' }));

    await step('complete for a prompt', () => client.complete({
        ref: { type: 'ref/prompt', name: 'test_prompt_with_arguments' },
        argument: { name: 'arg1', value: 'par' }, context: { arguments: { arg2: 'two' } },
    }));
    await step('complete for a template', () => client.complete({
        ref: { type: 'ref/resource', uri: 'test://template/{id}/data' }, argument: { name: 'id', value: '1' },
    }));

    await step('unknown tool', () => codeOf(call({ name: 'test_unknown', arguments: {} })));
    await step('unknown prompt', () => codeOf(client.getPrompt({ name: 'test_unknown' })));
    await step('unknown resource', async () => (await codeOf(client.readResource({ uri: 'test://unknown' }))) === notFound);

    await step('hear of an update', async () => {
        const uri = 'test://watched-resource';
        const end = await subscribe(uri);
        await call({ name: 'test_trigger_resource_update', arguments: {} });
        await received.until('updated', updated => updated === uri);
        await end();
        await call({ name: 'test_trigger_resource_update', arguments: {} });
        await pause(SILENCE_MS);
    });
    for (const [kind, trigger, method] of [['tools', 'tool', 'listTools'], ['prompts', 'prompt', 'listPrompts']]) {
        await step(`hear of a change of ${kind}`, async () => {
            const before = changing(await list(method, kind));
            const end = await listen(kind);
            await call({ name: `test_trigger_${trigger}_change`, arguments: {} });
            await received.until('changed', changed => changed === kind);
            const after = changing(await list(method, kind));
            await end();
            received.take();
            return { before, after };
        });
    }
    console.log(JSON.stringify(seen));
}
