"""`lockstep storage`: serves a store, stores content, and reads it back verified."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from lockstep.base.lines import event, say
from lockstep.base.redaction import redacted
from lockstep.base.settings import resolve
from lockstep.cli.options import Commands, Json, Storage
from lockstep.cli.output import emit
from lockstep.protocol.errors import DoctorError, UsageError

DEFAULT_MAX_MIB = 8 << 10
"""MiB of a tensor of 2^31 elements, the largest in a Program."""

storage_app = Commands(name="storage", help="Serve, fill and read content-addressed storage.", no_args_is_help=True)

CidArgument = Annotated[str, typer.Argument(metavar="CID", help="CIDv1 of the content.")]
MaxMib = Annotated[int, typer.Option("--max-mib", min=1, help="Largest content accepted, in MiB.")]


@storage_app.command("serve")
def serve(
    home: Annotated[Path, typer.Option(help="Directory of the stored blocks; created if missing.")],
    host: Annotated[str, typer.Option(help="Address to listen on; the RPC has no authentication.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = 0,
    max_mib: MaxMib = DEFAULT_MAX_MIB,
    as_json: Json = False,
) -> None:
    """Serve the Kubo RPC over a directory; one JSON line `ready` on stdout, SIGTERM ends it with exit code 0."""
    from lockstep.storage.directory import DirectoryStore
    from lockstep.storage.kubo import multiaddr_of_url

    try:
        from lockstep.storage.server import serve as serve_store
    except ImportError as error:
        raise DoctorError(
            f"serving needs {error.name}", "install it: pip install 'lockstep-compute[coordinator]'"
        ) from error

    store = DirectoryStore(home)

    def ready(host: str, port: int) -> None:
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        event("ready", url=url, multiaddr=multiaddr_of_url(url), home=str(store.home), pid=os.getpid())

    serve_store(store, host=host, port=port, max_bytes=max_mib << 20, on_ready=ready)


@storage_app.command("put")
def put(
    file: Annotated[Path, typer.Argument(help="File to store.")], storage: Storage = None, as_json: Json = False
) -> None:
    """Store a file's contents and print the CID."""
    from lockstep.storage import open_store

    with open_store(storage_url(storage)) as store:
        cid = store.put_file(file)
        emit({"cid": cid, "bytes": file.stat().st_size, "storage": store.name}, as_json, text=cid)


@storage_app.command("get")
def get(
    cid: CidArgument,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; default: stdout.")] = None,
    storage: Storage = None,
    max_mib: MaxMib = DEFAULT_MAX_MIB,
    as_json: Json = False,
) -> None:
    """Read content and verify it block by block against its CID."""
    from lockstep.storage import open_store

    if as_json and out is None:
        raise UsageError("--json needs --out, since stdout carries the envelope", "name a file with --out")
    with open_store(storage_url(storage)) as store:
        if out is None:
            for piece in store.get_stream(cid, max_bytes=max_mib << 20):
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
            return
        size = store.get_file(cid, out, max_bytes=max_mib << 20)
    emit({"cid": cid, "bytes": size, "path": str(out)}, as_json, text=str(out))


@storage_app.command("stat")
def stat(cid: CidArgument, storage: Storage = None, as_json: Json = False) -> None:
    """Print the size of stored content; exit code 7 if the store does not have it."""
    from lockstep.storage import open_store

    with open_store(storage_url(storage)) as store:
        size = store.size(cid)
    emit({"cid": cid, "bytes": size}, as_json, text=f"{size} bytes")


def storage_url(storage: str | None) -> str:
    """Resolves a command's store, and prints which one it is."""
    url = resolve(storage=storage).storage
    say(f"storage: {redacted(url)}")
    return url
