// Opens a URL as a browser does: `node browser.mjs URL [END]`. Follows redirects, with cookies, and prints the last
// page; or, of a page whose URL begins with END, the URL, as if that page could not be reached.

const jar = new Map();
let [url, end] = process.argv.slice(2);
for (let redirects = 0; redirects < 20; redirects += 1) {
    const cookie = [...jar].map(([name, value]) => `${name}=${value}`).join('; ');
    const response = await fetch(url, { redirect: 'manual', headers: { cookie } });
    for (const set of response.headers.getSetCookie()) {
        const [name, ...value] = set.split(';')[0].split('=');
        jar.set(name, value.join('='));
    }
    const next = response.headers.get('location');
    if (!next) {
        console.log(await response.text());
        process.exit(response.ok ? 0 : 1);
    }
    url = new URL(next, url).href;
    if (end && url.startsWith(end)) {
        console.log(url);
        process.exit(0);
    }
}
process.exit(1);
