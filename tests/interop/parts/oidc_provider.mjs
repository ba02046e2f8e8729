// An OpenID provider with `oidc-provider`, on a free port of this machine: `node oidc_provider.mjs RESOURCE`.
//
// Its first line on stdout is `listening on ISSUER`. Access tokens for RESOURCE are JWTs with a claim `roles`:
// `people` for Ann, `guests` for other users, `robots` for programs. The user that is redirected to log in is Ann, or the
// one whose name is in the file USER_FILE, and consents to everything. Applications may register themselves; the program `robot` is registered with ROBOT_SECRET, and the
// programs `signer-ES256`, `signer-EdDSA` and `signer-RS256` with keys, which are written to `ALGORITHM.pem` in
// ROBOT_KEYS. Tokens of programs live ROBOT_SECONDS, those of users USER_SECONDS. Refresh tokens are used once: a
// second use ends all tokens of the sign-in. Each secret of a request for a token, of a registration and of their
// responses becomes a line of the file SECRETS, and the status of each response to a refresh token one of REFRESHES,
// with its time in milliseconds. While there is a file REFRESHES.hold these responses are lost.

import { generateKeyPairSync } from 'node:crypto';
import { appendFileSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const require = createRequire(new URL('../../../.cache/interop/oidc/', import.meta.url));
const { Provider, errors } = await import(pathToFileURL(require.resolve('oidc-provider')));

// Its notices go to stdout, of which the test reads only the first line.
console.info = console.error;

const [resource] = process.argv.slice(2);
const SCOPE = 'mcp:use';

const server = createServer();
await new Promise(resolve => server.listen(0, '127.0.0.1', resolve));
const issuer = `http://127.0.0.1:${server.address().port}`;

// Registers a program with a key of its own.
const signer = (alg, type, options) => {
    const { privateKey, publicKey } = generateKeyPairSync(type, options);
    const pem = privateKey.export({ type: 'pkcs8', format: 'pem' });
    writeFileSync(`${process.env.ROBOT_KEYS}/${alg}.pem`, pem, { mode: 0o600 });
    return {
        client_id: `signer-${alg}`,
        grant_types: ['client_credentials'],
        jwks: { keys: [{ ...publicKey.export({ format: 'jwk' }), kid: 'one', use: 'sig', alg }] },
        redirect_uris: [],
        response_types: [],
        token_endpoint_auth_method: 'private_key_jwt',
        token_endpoint_auth_signing_alg: alg,
    };
};
const signers = () => [
    signer('ES256', 'ec', { namedCurve: 'P-256' }),
    signer('EdDSA', 'ed25519'),
    signer('RS256', 'rsa', { modulusLength: 2048 }),
];

const jwk = (alg, type, options) => ({
    ...generateKeyPairSync(type, options).privateKey.export({ format: 'jwk' }),
    kid: `key-for-${alg}`,
    use: 'sig',
    alg,
});

const ROLES = { '': 'robots', ann: 'people' };
const user = () => (process.env.USER_FILE ? readFileSync(process.env.USER_FILE, 'utf8') : 'ann');

const provider = new Provider(issuer, {
    clients: [
        {
            client_id: 'robot',
            client_secret: process.env.ROBOT_SECRET,
            grant_types: ['client_credentials'],
            redirect_uris: [],
            response_types: [],
        },
        ...(process.env.ROBOT_KEYS ? signers() : []),
    ],
    cookies: { keys: ['of no importance here'] },
    extraTokenClaims: (_, { accountId }) => ({ roles: [ROLES[accountId ?? ''] ?? 'guests'] }),
    features: {
        clientCredentials: { enabled: true },
        devInteractions: { enabled: false },
        registration: { enabled: true },
        revocation: { enabled: true },
        resourceIndicators: {
            enabled: true,
            getResourceServerInfo: (_, indicator) => {
                if (indicator !== resource) throw new errors.InvalidTarget();
                const sign = { alg: process.env.SIGNED_WITH ?? 'RS256' };
                return { scope: SCOPE, audience: resource, accessTokenFormat: 'jwt', jwt: { sign } };
            },
            useGrantedResource: () => true,
        },
    },
    findAccount: (_, accountId) => ({ accountId, claims: () => ({ sub: accountId }) }),
    interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
    jwks: {
        keys: [
            jwk('RS256', 'rsa', { modulusLength: 2048 }),
            jwk('ES256', 'ec', { namedCurve: 'P-256' }),
            jwk('EdDSA', 'ed25519'),
        ],
    },
    pkce: { required: () => true },
    scopes: ['openid', SCOPE],
    issueRefreshToken: (_, client) => client.grantTypeAllowed('refresh_token'),
    rotateRefreshToken: true,
    ttl: {
        AccessToken: Number(process.env.USER_SECONDS ?? 600),
        ClientCredentials: Number(process.env.ROBOT_SECONDS ?? 600),
    },
});

const SECRET_NAMES = ['access_token', 'client_secret', 'code', 'code_verifier', 'refresh_token', 'registration_access_token'];
provider.use(async (context, next) => {
    await next();
    if (!process.env.SECRETS || !['/reg', '/token'].includes(context.path)) return;
    const found = [context.oidc?.body, context.body].flatMap(of => SECRET_NAMES.map(name => of?.[name]));
    appendFileSync(process.env.SECRETS, found.filter(Boolean).map(secret => `${secret}\n`).join(''));
});
provider.use(async (context, next) => {
    await next();
    const { REFRESHES } = process.env;
    if (!REFRESHES || context.path !== '/token' || context.oidc?.body?.grant_type !== 'refresh_token') return;
    appendFileSync(REFRESHES, `${context.status} ${Date.now()}\n`);
    if (existsSync(`${REFRESHES}.hold`)) await new Promise(() => {});
});

// Actions of a user on the provider's pages.
async function interact(request, response) {
    const { prompt, params, session, grantId } =
        await provider.interactionDetails(request, response);
    let result;
    if (prompt.name === 'login') {
        result = { login: { accountId: user() } };
    } else {
        const known = grantId && (await provider.Grant.find(grantId));
        const grant = known || new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
        const { missingOIDCScope = [], missingResourceScopes = {} } = prompt.details;
        grant.addOIDCScope(missingOIDCScope.join(' '));
        for (const [of, scopes] of Object.entries(missingResourceScopes)) {
            grant.addResourceScope(of, scopes.join(' '));
        }
        result = { consent: { grantId: await grant.save() } };
    }
    await provider.interactionFinished(request, response, result, { mergeWithLastSubmission: false });
}

const callback = provider.callback();
server.on('request', (request, response) => {
    if (!request.url.startsWith('/interaction/')) return callback(request, response);
    return interact(request, response).catch(error => response.writeHead(500).end(String(error)));
});
console.log(`listening on ${issuer}`);
