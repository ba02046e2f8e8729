// Runs the steps of a script in order, with a client of either TypeScript SDK. The messages are recorded
// outside of this program; it reports only the ending of each step. The README beside `parts` lists the steps.

// `{ capabilities, steps }`; without it the program does its task. With `shows` it reports the result of
// each step instead of `done`. With `names` a list reports the names of its items, joined.
export const script = process.env.SCRIPT && JSON.parse(process.env.SCRIPT);

// Responses of a client with that capability.
export const ANSWERS = {
    elicitation: { action: 'accept', content: { name: 'Ada', confirmed: true } },
    sampling: { role: 'assistant', model: 'none', content: { type: 'text', text: 'It holds water back.' } },
    roots: { roots: [{ uri: 'file:///weir', name: 'weir' }] },
};

const LISTS = {
    'prompts/list': 'listPrompts',
    'tools/list': 'listTools',
    'resources/list': 'listResources',
    'resources/templates/list': 'listResourceTemplates',
};

// Differences between the SDKs: `page(method, params)` lists a page, `call(params, options)` calls a tool,
// `request(request)` sends a request that the SDK does not support, `subscribe(uri)` subscribes to one
// resource and returns a function that unsubscribes, and `updates` receives updates.
export async function take(client, { page, call, request, subscribe, updates }) {
    const endings = [];
    let unsubscribe;
    const kinds = {
        ping: () => client.ping(),
        list: async ({ method }) => {
            const names = [];
            let cursor;
            do {
                const listed = await page(LISTS[method], { cursor });
                cursor = listed.nextCursor;
                const [items] = Object.values(listed).filter(Array.isArray);
                names.push(...items.map(item => item.name));
            } while (cursor !== undefined);
            return script.names && names.join(' ');
        },
        get: ({ params }) => client.getPrompt(params),
        complete: ({ params }) => client.complete(params),
        read: ({ params }) => client.readResource(params),
        call: ({ params }) => call(params, {}),
        'call with progress': ({ params }) => call(params, { onprogress: () => {} }),
        'cancel at progress': ({ params }) => {
            const controller = new AbortController();
            const onprogress = () => controller.abort('enough');
            return call(params, { onprogress, signal: controller.signal });
        },
        request: ({ method, params }) => request({ method, params }),
        'log level': ({ level }) => client.setLoggingLevel(level),
        subscribe: async ({ uri }) => {
            unsubscribe = subscribe ? await subscribe(uri) : () => client.unsubscribeResource({ uri });
            if (!subscribe) await client.subscribeResource({ uri });
        },
        'hear of an update': () => updates.next(),
        unsubscribe: () => unsubscribe(),
    };
    for (const step of script.steps) {
        const taken = kinds[step.do](step);
        const shows = script.shows || (script.names && step.do === 'list');
        endings.push(await taken.then(given => (shows ? given : 'done'), ({ code }) => `refused: ${code}`));
    }
    console.log(JSON.stringify(endings));
}
