// An interactive client of either TypeScript SDK that has to log in: `node oauth.mjs sdk1|sdk2 URL`.
//
// It discovers the provider, registers itself, redirects its user there, and returns with a token: all by the
// SDK, except for the browser, which is simulated here. It prints its observations as one line.

import { requireFrom } from './contract.mjs';

const require = requireFrom('npm');
const [sdk, url] = process.argv.slice(2);
const { Client, StreamableHTTPClientTransport, UnauthorizedError } = {
    sdk1: () => ({
        ...require('@modelcontextprotocol/sdk/client/index.js'),
        ...require('@modelcontextprotocol/sdk/client/streamableHttp.js'),
        ...require('@modelcontextprotocol/sdk/client/auth.js'),
    }),
    sdk2: () => require('@modelcontextprotocol/client'),
}[sdk]();

const REDIRECT = 'http://127.0.0.1:9/callback';

// Follows the redirects of the provider, with its cookies, until it redirects the user to the client.
async function browse(start) {
    const jar = new Map();
    let at = start;
    for (let hops = 0; hops < 12; hops += 1) {
        if (at.href.startsWith(REDIRECT)) return at.searchParams;
        const cookie = [...jar].map(([name, value]) => `${name}=${value}`).join('; ');
        const answer = await fetch(at, { redirect: 'manual', headers: { cookie } });
        for (const set of answer.headers.getSetCookie()) {
            const [name, ...value] = set.split(';')[0].split('=');
            if (value.join('=') === '') jar.delete(name);
            else jar.set(name, value.join('='));
        }
        const next = answer.headers.get('location');
        if (next === null) throw new Error(`${at}: ${answer.status} ${await answer.text()}`);
        at = new URL(next, at);
    }
    throw new Error('the provider sends its user round and round');
}

class User {
    redirectUrl = REDIRECT;
    clientMetadata = {
        client_name: sdk,
        redirect_uris: [REDIRECT],
        grant_types: ['authorization_code'],
        response_types: ['code'],
        token_endpoint_auth_method: 'none',
    };
    clientInformation = () => this.client;
    saveClientInformation = client => void (this.client = client);
    tokens = () => this.token;
    saveTokens = token => void (this.token = token);
    codeVerifier = () => this.verifier;
    saveCodeVerifier = verifier => void (this.verifier = verifier);
    saveDiscoveryState = state => void (this.discovered = state);
    discoveryState = () => this.discovered;
    redirectToAuthorization = async at => void (this.callback = await browse(at));
}

const authProvider = new User();
const transport = () => new StreamableHTTPClientTransport(new URL(url), { authProvider });
const client = () => new Client({ name: sdk, version: '0' }, { versionNegotiation: { mode: 'auto' } });

const first = transport();
const refused = await client().connect(first).catch(error => error);
if (!(refused instanceof UnauthorizedError)) throw refused ?? new Error('nobody asked for a token');
await first.finishAuth(sdk === 'sdk1' ? authProvider.callback.get('code') : authProvider.callback);

const admitted = client();
await admitted.connect(transport());
const { prompts } = await admitted.listPrompts();
console.log(JSON.stringify({ prompts: prompts.map(prompt => prompt.name) }));
await admitted.close();
process.exit();
