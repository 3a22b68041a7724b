"""URLs that hold a key: what of them may be shown, and text from which their keys are taken out.

>>> redacted("https://me:pw@mainnet.example.io/v3/0123456789abcdef?token=x")
'https://mainnet.example.io'
"""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from contextlib import suppress
from html import escape
from urllib.parse import quote, quote_plus, unquote, urlsplit

HIDDEN = "[hidden]"
NO_URL = "(not a URL)"
SECRET_CHARACTERS = 6
"""A part of a URL that is shorter is a word of its path ("v3", "rpc"), and no key."""

_secrets: dict[str, str] = {}
"""By secret text: its replacement in output."""


def urls_of(text: str) -> list[str]:
    """The URLs of a comma-separated list."""
    return [url for part in text.split(",") if (url := part.strip())]


def redacted(url: str) -> str:
    """Returns only the scheme, host and port of a URL, or of each URL in a comma-separated list; the rest is secret."""
    if len(urls := urls_of(url)) > 1:
        return ", ".join(redacted(each) for each in urls)
    try:
        parts = urlsplit(url.strip())
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return NO_URL
    if not parts.scheme or not parts.hostname:
        return NO_URL
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{port}"


def hide(url: str) -> None:
    """Makes `scrubbed` remove a URL's path, query and user info from now on, or those of each URL of a list."""
    for each in urls_of(url):
        shown = redacted(each)
        if shown != NO_URL and each.rstrip("/") == shown:
            continue
        _forget(each, shown)
        if shown == NO_URL:
            continue
        parts = urlsplit(each)
        tail = each.partition("://")[2].partition("/")[2]
        _forget(tail)
        for part in (parts.username, parts.password, *parts.path.split("/"), parts.query, parts.fragment):
            _forget(part or "")
        for field in parts.query.split("&"):
            _forget(field.partition("=")[2])


def spellings_of(secret: bytes) -> frozenset[str]:
    """Returns the forms in which text may contain a password or a key: plain, hex, base64, in a URL, JSON, HTML, as a
    number."""
    spelled = {secret.hex(), secret.hex().upper(), str(int.from_bytes(secret, "big"))}
    for before in range(3):
        # Within a longer text in base64 it begins at one of three places; what mixes with its neighbours is left out.
        first, last = -(-before * 8 // 6), (before + len(secret)) * 8 // 6
        coded = (b64encode(bytes(before) + secret), urlsafe_b64encode(bytes(before) + secret))
        spelled |= {code.decode()[first:last] for code in coded}
    with suppress(UnicodeDecodeError):
        text = secret.decode()
        spelled |= {text, quote(text, safe=""), quote_plus(text), quote(text), escape(text), repr(text)[1:-1]}
        spelled.add(json.dumps(text)[1:-1])
    return frozenset(spelled)


def scrubbed(text: str) -> str:
    """Returns the text without the secrets that were given to `hide`."""
    # The longest first: a whole URL is shown by its host, and not with a hole in it.
    for secret in sorted(_secrets, key=len, reverse=True):
        if secret in text:
            text = text.replace(secret, _secrets[secret])
    return text


def _forget(secret: str, shown: str = HIDDEN) -> None:
    if len(secret) < SECRET_CHARACTERS:
        return
    # As it was given, as HTTP spells it, as JSON does.
    for spelling in (secret, unquote(secret), quote(secret, safe="%/:?=&@+;,~!$'()*#[]")):
        _secrets[spelling] = shown
        _secrets[json.dumps(spelling)[1:-1]] = shown
