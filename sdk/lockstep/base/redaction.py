"""Removes keys from URLs, and from text that may contain such URLs.

>>> redacted("https://me:pw@mainnet.example.io/v3/0123456789abcdef?token=x")
'https://mainnet.example.io'
>>> redacted("dir:///tmp/blocks,gateway+https://me:pw@gateway.example.io/key")
'dir:///tmp/blocks, gateway+https://gateway.example.io'
"""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from contextlib import suppress
from html import escape
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit

HIDDEN = "[hidden]"
NO_URL = "(not a URL)"
SECRET_CHARACTERS = 6
"""Length below which a part of a URL is a word of its path ("v3", "rpc") and not a key."""

PLACES = ("dir", "file", "sqlite")
"""Schemes of local places, which have a path and no host."""
_USER = re.compile(r"(?<=://)[^\s/@\"'<>]*@")
"""User and password before a URL's host, anywhere in a text."""
_NEXT = re.compile(r",(?=\s*(?:[A-Za-z][A-Za-z0-9+.-]*://|$))")
"""The comma after a folder in a list of URLs; the folder's own name may contain commas."""
_WORD = re.compile(r"[A-Za-z]{1,15}")

_secrets: dict[str, str] = {}
"""Maps a secret text to its replacement in output."""


def urls_of(text: str) -> list[str]:
    """Returns the URLs of a comma-separated list."""
    listed = _NEXT.split(text) if text.lstrip().startswith(("dir:", "/")) else text.split(",")
    return [url for part in listed if (url := part.strip())]


def redacted(url: str) -> str:
    """Returns scheme, host and port of a URL, or of each URL of a comma-separated list; nothing else may be shown.

    A folder (`dir://`) is shown by its path, a multiaddr unchanged.
    """
    if len(urls := urls_of(url)) > 1:
        return ", ".join(redacted(each) for each in urls)
    url = url.strip()
    if url.startswith("/"):
        return url if not set(url) & set("@?#") else NO_URL
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return NO_URL
    if parts.scheme in PLACES and parts.netloc in ("", "~") and parts.path:
        return f"{parts.scheme}://{parts.netloc}{parts.path}"
    # An @ after the host: a slash or # in the password has ended the host too early.
    if not parts.scheme or not parts.hostname or "@" in url.partition("://")[2].removeprefix(parts.netloc):
        return NO_URL
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{port}"


def shown(value: Any) -> Any:
    """Returns a setting in the form that people may see: URLs are reduced as by `redacted`."""
    if isinstance(value, str):
        return redacted(value) if "://" in value or ("@" in value and value[:1] not in "/~.") else value
    if isinstance(value, dict):
        return {name: shown(each) for name, each in value.items()}
    return [shown(each) for each in value] if isinstance(value, list) else value


def hide(url: str) -> None:
    """Makes `scrubbed` remove a URL's path, query and user info from now on, or those of each URL of a list."""
    for each in urls_of(url):
        shown = redacted(each)
        if shown != NO_URL and each.rstrip("/") == shown:
            continue
        _forget(each, shown)
        if shown == NO_URL:
            for part in re.split(r"[:/@?#&]+", each.rpartition("@")[0].rpartition("://")[2]):
                _forget(part)
            continue
        parts = urlsplit(each)
        tail = each.partition("://")[2].partition("/")[2]
        if parts.scheme in PLACES:
            tail, parts = parts.query, parts._replace(path="")
        _forget(tail)
        # A plain word is a user's name, which may occur in other text; in URLs `scrubbed` removes any user.
        if not _WORD.fullmatch(parts.username or ""):
            _forget(parts.username or "")
        for part in (parts.password, *parts.path.split("/"), parts.query, parts.fragment):
            _forget(part or "")
        for field in parts.query.split("&"):
            _forget(field.partition("=")[2])


def spellings_of(secret: bytes) -> frozenset[str]:
    """Returns the forms in which text may contain a password or a key: plain, hex, base64, in a URL, JSON, HTML, as a
    number."""
    spelled = {secret.hex(), secret.hex().upper(), str(int.from_bytes(secret, "big"))}
    for before in range(3):
        # In longer base64 text the secret begins at one of three positions; characters shared with neighbours are left
        # out.
        first, last = -(-before * 8 // 6), (before + len(secret)) * 8 // 6
        coded = (b64encode(bytes(before) + secret), urlsafe_b64encode(bytes(before) + secret))
        spelled |= {code.decode()[first:last] for code in coded}
    with suppress(UnicodeDecodeError):
        text = secret.decode()
        spelled |= {text, quote(text, safe=""), quote_plus(text), quote(text), escape(text), repr(text)[1:-1]}
        spelled.add(json.dumps(text)[1:-1])
    return frozenset(spelled)


def scrubbed(text: str) -> str:
    """Returns the text without secrets registered by `hide`, and without the user of any URL."""
    # Longest first, so that a whole URL becomes its host instead of a URL with a gap.
    for secret in sorted(_secrets, key=len, reverse=True):
        if secret in text:
            text = text.replace(secret, _secrets[secret])
    return _USER.sub("", text) if "@" in text else text


def _forget(secret: str, shown: str = HIDDEN) -> None:
    if len(secret) < SECRET_CHARACTERS:
        return
    # In the forms as given, as in HTTP, and as in JSON.
    for spelling in (secret, unquote(secret), quote(secret, safe="%/:?=&@+;,~!$'()*#[]")):
        _secrets[spelling] = shown
        _secrets[json.dumps(spelling)[1:-1]] = shown
