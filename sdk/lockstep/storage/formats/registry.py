"""Registry of wire formats by the kind that begins a format's name."""

from __future__ import annotations

from dataclasses import fields

from lockstep.protocol.errors import UsageError
from lockstep.storage.formats.base import WireFormat
from lockstep.storage.formats.e3m0 import E3M0Blocks
from lockstep.storage.formats.halves import Halves
from lockstep.storage.formats.int8 import Int8Blocks
from lockstep.storage.formats.palette import Palette
from lockstep.storage.formats.signs import Signs
from lockstep.storage.formats.sparse import Sparse
from lockstep.storage.formats.words import PlainWords

KINDS: dict[str, type[WireFormat]] = {
    f.kind: f for f in (PlainWords, Halves, Int8Blocks, Signs, E3M0Blocks, Palette, Sparse)
}


def named(name: str) -> WireFormat:
    """Parses a format's name, as `WireFormat.name` writes it. Raises UsageError for an unknown format."""
    kind, *given = name.split("-")
    found = KINDS.get(kind)
    known = fields(found) if found is not None else ()  # type: ignore[arg-type]
    if found is None or len(known) != len(given):
        raise UsageError(
            f"wire format {name[:80]!r} is unknown", f"name a kind ({', '.join(KINDS)}) and its parameters"
        )
    values = [
        int(v) if f.type == "int" and v.isascii() and v.isdigit() and len(v) < 12 else v
        for f, v in zip(known, given, strict=True)
    ]
    if any(f.type == "int" and isinstance(v, str) for f, v in zip(known, values, strict=True)):
        raise UsageError(f"wire format {name[:80]!r} is unknown", "give its parameters as numbers")
    form = found(*values)
    if form.name != name:
        raise UsageError(f"{name[:80]!r} is not the canonical name of a wire format", f"write {form.name}")
    return form
