// Node's interpretation of URIs, for tests/interop/uris.rs: input and output as in uri_readers.py.

import { readFileSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";

const decoded = (text) => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};

const claim = (scheme, host, file) => {
  const whole = path.posix.normalize(`/${host}/${file}`);
  return `${scheme}/${whole.replace(/^\/+|\/+$/g, "")}`;
};

function* claims(uri) {
  let url;
  try {
    url = new URL(uri);
  } catch {
    return;
  }
  for (const read of [(text) => text, decoded, (text) => decoded(decoded(text))]) {
    for (const fold of [(text) => text, (text) => text.normalize("NFKC").toLowerCase()]) {
      yield claim(url.protocol, fold(read(url.hostname)), fold(read(url.pathname)));
      yield claim(url.protocol, fold(read(url.host)), fold(read(url.pathname + url.search)));
      yield claim(url.protocol, "", fold(read(url.href.slice(url.protocol.length))));
    }
  }
  if (url.protocol !== "file:") return;
  for (const windows of [false, true]) {
    try {
      const file = fileURLToPath(url, { windows });
      yield claim("file:", "", (windows ? path.win32.normalize(file) : file).replaceAll("\\", "/"));
    } catch {
      // Node rejects the URI.
    }
  }
}

const uris = JSON.parse(readFileSync(0, "utf8"));
const results = uris.map((uri) => ({
  written: URL.canParse(uri) ? new URL(uri).href : null,
  claims: [...new Set(claims(uri))].map((text) => text.toWellFormed()),
}));
console.log(JSON.stringify(results));
