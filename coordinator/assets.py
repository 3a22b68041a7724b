"""The pages' scripts and styles, held in memory: two libraries from npm (tools/vendored.py), and the coordinator's
own."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from fastapi import APIRouter, Request, Response

from coordinator import document
from lockstep.protocol.errors import NotFoundError

FOLDER = Path(__file__).parent / "static"
MEDIA_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
               ".LICENSE": "text/plain; charset=utf-8"}  # fmt: skip
FOREVER, BRIEFLY = "public, max-age=31536000, immutable", "public, max-age=60"


@dataclass(frozen=True)
class Asset:
    """One file."""

    body: bytes
    compressed: bytes
    media_type: str
    digest: str
    """The first 16 hex digits of the file's SHA-256, which serve as its version."""

    @staticmethod
    def read(path: Path) -> Asset:
        """Returns the content of a file of the folder."""
        body = path.read_bytes()
        packed = gzip.compress(body, 9, mtime=0)
        return Asset(body, packed, MEDIA_TYPES[path.suffix], sha256(body).hexdigest()[:16])


ASSETS = {path.name: Asset.read(path) for path in sorted(FOLDER.iterdir()) if path.suffix in MEDIA_TYPES}

router = APIRouter(include_in_schema=False)


def url(name: str) -> str:
    """Returns the URL of a file with its version, so that browsers may cache it forever."""
    return f"/static/{name}?v={ASSETS[name].digest}"


def takes_gzip(request: Request) -> bool:
    """True if a client reads compressed answers."""
    return "gzip" in request.headers.get("accept-encoding", "")


@router.get("/static/{name}", responses=document.problems(404))
def asset(request: Request, name: str, v: str = "") -> Response:
    """Returns a file of the folder by its name."""
    found = ASSETS.get(name)
    if found is None:
        raise NotFoundError(f"no file {name[:50]}", hint="the pages name those that there are")
    headers = {
        "ETag": f'"{found.digest}"', "Cache-Control": FOREVER if v == found.digest else BRIEFLY,
        "Vary": "Accept-Encoding", "X-Content-Type-Options": "nosniff",
    }  # fmt: skip
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    if takes_gzip(request):
        return Response(found.compressed, 200, headers | {"Content-Encoding": "gzip"}, found.media_type)
    return Response(found.body, 200, headers, found.media_type)
