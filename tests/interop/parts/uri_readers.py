"""Interpretation of URIs by Python's libraries, for tests/interop/uris.rs.

Reads a JSON array of texts on stdin. Writes a JSON array with an object for each: `written` is the URI as
a parser serializes it (null if the parser rejects it), `claims` are the resources that the URI may mean, as
`scheme:/host/path`, decoded and normalized.
"""

import json
import ntpath
import posixpath
import re
import sys
import unicodedata
import urllib.parse
from urllib.parse import unquote, unquote_plus, urlparse, urlsplit

from pydantic import AnyUrl


def claim(scheme, host, path):
    host = "" if scheme.lower() == "file" and (host or "").lower() == "localhost" else host or ""
    whole = posixpath.normpath("/".join(["", host, path or ""]))
    return f"{scheme.lower()}:/{whole.lstrip('/')}"


def prefixless(uri):
    """Parsers that remove the scheme and use the rest as a path."""
    scheme, _, rest = uri.partition(":")
    yield scheme.strip(), "", rest
    yield scheme.strip(), "", rest.removeprefix("//")


def split(uri):
    for cut in (urlparse, urlsplit):
        parts = cut(uri)
        yield parts.scheme, parts.hostname, parts.path
        yield parts.scheme, parts.netloc, parts.path
        # Parsers without query and fragment.
        tail = uri.partition(f"//{parts.netloc}")[2] if parts.netloc else parts.path
        yield parts.scheme, "", f"{parts.hostname or ''}{tail}"


def pydantic(uri):
    url = AnyUrl(uri)
    yield url.scheme, url.host, url.path
    yield from split(str(url))
    yield from prefixless(str(url))


def windows(path):
    """Names as NTFS takes them: no dots and spaces at their ends, no streams."""
    parts = [part.rstrip(". ") or part for part in path.replace("\\", "/").split("/")]
    return "/".join(part if ntpath.splitdrive(part)[0] else part.partition(":")[0] for part in parts)


def drive(path):
    """Joined to a folder, a path of Windows is the part that begins with its last drive, as in `url2pathname` there."""
    found = re.search(r"[A-Za-z][:|](?=/[^:|]*$)", path.replace("\\", "/"))
    return path[found.start() :].replace("|", ":", 1) if found else path


def tomcat(path):
    return "/".join(part.partition(";")[0] for part in path.split("/"))


PATHS = [
    lambda path: path,
    unquote,
    unquote_plus,
    lambda path: unquote(unquote(path)),
    lambda path: tomcat(unquote(path)),
    lambda path: unquote(tomcat(path)),
    lambda path: unicodedata.normalize("NFKC", unquote(path)),
    lambda path: unicodedata.normalize("NFKC", unquote(path)).casefold(),
    lambda path: unquote(path).replace("\\", "/"),
    lambda path: unquote(path).strip(),
]

READERS = [
    prefixless,
    split,
    pydantic,
    lambda uri: split(unquote(uri)),
    lambda uri: split(unicodedata.normalize("NFKC", unquote(uri))),
    lambda uri: split(uri.strip().replace("\\", "/")),
    lambda uri: prefixless(unquote(uri)),
]


def claims(uri):
    parts = set()
    for reader in READERS:
        try:
            parts.update((scheme, host or "", path or "") for scheme, host, path in reader(uri))
        except ValueError:
            continue  # It refuses the URI.
    read = {(scheme, read(host), read(path)) for scheme, host, path in parts for read in PATHS}
    files = [(scheme, host, unquote(path)) for scheme, host, path in parts if scheme == "file"]
    read |= {(scheme, host, read(path)) for scheme, host, path in files for read in (windows, drive)}
    return sorted({claim(*one) for one in read})


def written(uri):
    try:
        return str(AnyUrl(uri))
    except ValueError:
        return None


def encodable(texts):
    return [text.encode("utf-8", "replace").decode() for text in texts]


uris = json.load(sys.stdin)
print(json.dumps([{"written": written(uri), "claims": encodable(claims(uri))} for uri in uris]))
