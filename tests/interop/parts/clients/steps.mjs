// The steps of a script, one after the other, with a client of either TypeScript SDK. What goes over the
// wire is recorded outside; this says only how each step ended. The README beside `parts` has the steps.
//
// Knows nothing of: the servers, what is right.

// `{ capabilities, steps }`; without it the program does its task. With `shows` it tells what each step
// gave instead of that it was done.
export const script = process.env.SCRIPT && JSON.parse(process.env.SCRIPT);

// What a client with that capability answers.
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

// What differs between the SDKs: `page(method, params)` lists a page, `call(params, options)` calls a
// tool, `request(request)` sends what the SDK knows nothing of, `subscribe(uri)` listens for one
// resource and returns how to end that, and `heard` tells of updates.
export async function take(client, { page, call, request, subscribe, heard }) {
    const endings = [];
    let unsubscribe;
    const kinds = {
        ping: () => client.ping(),
        list: async ({ method }) => {
            let cursor;
            do {
                ({ nextCursor: cursor } = await page(LISTS[method], { cursor }));
            } while (cursor !== undefined);
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
        'hear of an update': () => heard.next(),
        unsubscribe: () => unsubscribe(),
    };
    for (const step of script.steps) {
        const taken = kinds[step.do](step);
        endings.push(await taken.then(given => (script.shows ? given : 'done'), ({ code }) => `refused: ${code}`));
    }
    console.log(JSON.stringify(endings));
}
