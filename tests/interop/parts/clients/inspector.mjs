// The MCP Inspector's command line: one process per request, in either era and over every transport.
//
// It supports no completion, no change notifications and no progress, and prints only the text of an error;
// its user sees neither pages nor cursors. Since each request takes a process, it makes the first request of
// each kind that the task has.

import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import { go, report, task, texts, parsedArguments } from './contract.mjs';

const cli = fileURLToPath(new URL(
    '../../../../.cache/interop/inspector/node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js',
    import.meta.url,
));
const { wire, era, target } = parsedArguments();
const run = promisify(execFile);

async function ask(method, ...rest) {
    const options = ['--transport', wire, '--protocol-era', era, '--format', 'json', '--method', method, ...rest];
    const where = wire === 'stdio' ? [] : ['--server-url', target[0]];
    const command = wire === 'stdio' ? ['--', ...target] : [];
    const { stdout } = await run(process.execPath, [cli, '--cli', ...where, ...options, ...command]);
    return JSON.parse(stdout).result;
}

await go();
const { serverInfo, protocolVersion } = await ask('initialize');
const seen = { server: serverInfo.name, revision: protocolVersion };
seen.prompts = (await ask('prompts/list')).prompts.map(prompt => prompt.name);
seen.got = {};
for (const { name, arguments: given } of task.get.slice(0, 1)) {
    const pairs = Object.entries(given).map(([key, value]) => `${key}=${value}`);
    seen.got[name] = texts(await ask('prompts/get', '--prompt-name', name, '--prompt-args', ...pairs));
}
seen.tools = (await ask('tools/list')).tools.map(tool => tool.name);
const call = tool =>
    ask('tools/call', '--tool-name', tool.name, '--tool-args-json', JSON.stringify(tool.arguments));
seen.structured = {};
for (const tool of task.call.slice(0, 1)) {
    seen.structured[tool.name] = (await call(tool)).structuredContent;
}
seen.counted = {};
for (const tool of task.count.slice(0, 1)) {
    seen.counted[tool.name] = { said: (await call(tool)).content[0].text };
}
seen.resources = (await ask('resources/list')).resources.map(resource => resource.uri);
seen.templates = (await ask('resources/templates/list')).resourceTemplates.map(template => template.uriTemplate);
seen.read = {};
for (const uri of task.read.slice(0, 1)) {
    seen.read[uri] = (await ask('resources/read', '--uri', uri)).contents[0].text;
}
seen.unknown = await ask('prompts/get', '--prompt-name', task.unknown).then(
    () => 'a prompt',
    failed => ({ message: JSON.parse(failed.stderr.split('\n').findLast(line => line.startsWith('{'))).error.message }),
);
report(seen);
