// Stand-in for the APIs of three model providers, for command-line clients under test.
//
//   node model.mjs LOG STEP...
//
// A STEP is `NAME`, or `NAME until OTHER`. The response to a request calls the tool whose name ends with NAME, and
// the next one that of the next step; `until` repeats the step until a tool is named OTHER, 50 times at most. If there
// is no such tool, or no step is left, the response is a text. As the providers do, it responds with 400 if the name of
// a tool is outside of their pattern. Each request becomes one line of JSON in LOG:
// { api, tools, texts, results, refused }.

import { appendFileSync } from 'node:fs';
import { createServer } from 'node:http';

const [log, ...steps] = process.argv.slice(2);
const plan = steps.map((step) => step.split(' until '));
let calls = 0;

const PATTERN = /^[A-Za-z0-9_-]{1,64}$/;

const list = (value) => (Array.isArray(value) ? value : value == null ? [] : [value]);
const said = (content) => (typeof content === 'string' ? content : JSON.stringify(content));
// Separator between the namespace that a client puts its tools in and the name of a tool.
const spaced = (space, tool) => ({ name: tool.name, space, whole: space + tool.name });

// Parses a request of one API, and writes a response of it: a text, or a call of a tool.
const apis = {
    anthropic: {
        path: /^\/v1\/messages$/,
        read: ({ tools, messages }) => ({
            tools: list(tools).map((tool) => spaced('', tool)),
            texts: list(messages)
                .filter(({ role }) => role === 'user')
                .flatMap(({ content }) => (typeof content === 'string' ? content : list(content).map((it) => it.text)))
                .filter(Boolean),
            results: list(messages)
                .flatMap(({ content }) => (Array.isArray(content) ? content : []))
                .filter(({ type }) => type === 'tool_result')
                .map(({ content }) => said(content)),
        }),
        answer: ({ model, stream }, text, call) => {
            const block = call
                ? { type: 'tool_use', id: `toolu_${call.id}`, name: call.tool.name, input: call.input }
                : { type: 'text', text };
            const usage = { input_tokens: 1, output_tokens: 1 };
            const stop = { stop_reason: call ? 'tool_use' : 'end_turn', stop_sequence: null };
            const message = { id: 'msg_1', type: 'message', role: 'assistant', model, usage };
            if (!stream) return [{ ...message, ...stop, content: [block] }];
            const begun = call ? { ...block, input: {} } : { type: 'text', text: '' };
            const delta = call
                ? { type: 'input_json_delta', partial_json: JSON.stringify(call.input) }
                : { type: 'text_delta', text };
            return [
                { type: 'message_start', message: { ...message, content: [], stop_reason: null, stop_sequence: null } },
                { type: 'content_block_start', index: 0, content_block: begun },
                { type: 'content_block_delta', index: 0, delta },
                { type: 'content_block_stop', index: 0 },
                { type: 'message_delta', delta: stop, usage },
                { type: 'message_stop' },
            ];
        },
    },
    openai: {
        path: /^\/v1\/responses$/,
        read: ({ tools, input }) => ({
            // The provider joins the namespace and the names of its tools.
            tools: list(tools).flatMap((tool) =>
                tool.type === 'namespace'
                    ? tool.tools.map((inner) => spaced(tool.name, inner))
                    : tool.name ? [spaced('', tool)] : [],
            ),
            texts: list(input)
                .filter(({ role }) => role === 'user')
                .flatMap(({ content }) => list(content).map((it) => it.text)),
            results: list(input)
                .filter(({ type }) => type === 'function_call_output')
                .map(({ output }) => said(output)),
        }),
        answer: (_, text, call) => {
            const namespace = call?.tool.space || undefined;
            const item = call
                ? { type: 'function_call', id: `fc_${call.id}`, call_id: `call_${call.id}`, status: 'completed',
                    name: call.tool.name, namespace, arguments: JSON.stringify(call.input) }
                : { type: 'message', id: 'msg_1', role: 'assistant', status: 'completed',
                    content: [{ type: 'output_text', text, annotations: [] }] };
            const usage = { input_tokens: 1, output_tokens: 1, total_tokens: 2 };
            const response = { id: 'resp_1', object: 'response', output: [] };
            return [
                { type: 'response.created', response },
                { type: 'response.output_item.added', output_index: 0, item },
                { type: 'response.output_item.done', output_index: 0, item },
                { type: 'response.completed', response: { ...response, status: 'completed', output: [item], usage } },
            ];
        },
    },
    gemini: {
        path: /^\/v1beta\/models\/[^:]+:(stream)?[gG]enerateContent$/,
        read: ({ tools, contents }) => ({
            tools: list(tools).flatMap(({ functionDeclarations }) => list(functionDeclarations)).map((it) => spaced('', it)),
            texts: list(contents)
                .filter(({ role }) => role === 'user')
                .flatMap(({ parts }) => parts.map(({ text }) => text))
                .filter(Boolean),
            results: list(contents)
                .flatMap(({ parts }) => parts)
                .filter(({ functionResponse }) => functionResponse)
                .map(({ functionResponse }) => said(functionResponse.response)),
        }),
        answer: (_, text, call) => {
            const part = call ? { functionCall: { name: call.tool.name, args: call.input } } : { text };
            return [{ candidates: [{ index: 0, finishReason: 'STOP', content: { role: 'model', parts: [part] } }] }];
        },
    },
};

async function serve(request, response) {
    const { pathname, searchParams } = new URL(request.url, 'http://loopback');
    const json = (status, value) => {
        response.writeHead(status, { 'content-type': 'application/json' });
        response.end(JSON.stringify(value));
    };
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const found = Object.entries(apis).find(([, { path }]) => path.test(pathname));
    if (!found || request.method !== 'POST') {
        appendFileSync(log, `${JSON.stringify({ other: `${request.method} ${request.url}` })}\n`);
        return json(404, { error: { message: 'there is nothing here', type: 'not_found_error' } });
    }
    const [api, { read, answer }] = found;
    const body = JSON.parse(Buffer.concat(chunks));
    const { tools, texts, results } = read(body);
    const refused = tools.find(({ name, space }) => !PATTERN.test(name) || (space && !PATTERN.test(space)))?.whole;
    appendFileSync(log, `${JSON.stringify({ api, tools: tools.map(({ whole }) => whole), texts, results, refused })}\n`);
    if (refused !== undefined) {
        const message = `tools: '${refused}' does not match ${PATTERN.source}`;
        return json(400, { type: 'error', error: { type: 'invalid_request_error', message, code: 400 } });
    }
    const [name, other] = plan[0] ?? [];
    const named = (name) => tools.find(({ whole }) => whole.endsWith(name));
    const tool = name && named(name);
    const text = name && !tool ? `there is no tool ${name}` : 'that is all';
    if (tool) {
        calls += 1;
        // A client takes the same call five times in a row for a loop, so the change has to arrive before.
        if (other && !named(other)) await new Promise((resolve) => setTimeout(resolve, 300));
        if (!other || named(other) || calls > 50) plan.shift();
    }
    const events = answer(body, text, tool && { tool, input: {}, id: calls });
    if (!body.stream && !searchParams.has('alt')) return json(200, events[0]);
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    for (const event of events) {
        response.write(`${event.type ? `event: ${event.type}\n` : ''}data: ${JSON.stringify(event)}\n\n`);
    }
    response.end();
}

const server = createServer((request, response) => {
    serve(request, response).catch((error) => {
        appendFileSync(log, `${JSON.stringify({ other: `${error.stack}` })}\n`);
        response.destroy();
    });
});
server.listen(0, '127.0.0.1', () => console.log(`listening on http://127.0.0.1:${server.address().port}`));
