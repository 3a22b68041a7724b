"""The base class of what a job's description names: strategies, optimizers, codecs, aggregates."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar


class Described:
    """A frozen dataclass that is described by its name in its registry and by its fields."""

    name: ClassVar[str]
    """The name under which registry.py has it."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the description; a field that is such a value is described likewise."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return {"name": self.name, **{k: v.to_dict() if hasattr(v, "to_dict") else v for k, v in values.items()}}
