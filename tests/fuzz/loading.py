"""Modules for a fuzzer: instrumented for coverage, one of them perhaps with a defect planted in its source."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Collection, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

ROOT = Path(__file__).resolve().parent.parent.parent


class Change:
    """A text of one module's source, and the text in its place."""

    def __init__(self, module: str, before: str, after: str) -> None:
        self.module, self.before, self.after = module, before, after

    def apply(self, source: str) -> str:
        """The changed source. ValueError if the text is not there exactly once."""
        if source.count(self.before) != 1:
            raise ValueError(f"{self.module} holds {self.before!r} {source.count(self.before)} times")
        return source.replace(self.before, self.after)


def file_of(module: str) -> Path:
    """The source of one of our modules."""
    top = ROOT / ("sdk" if module.startswith("lockstep") else "")
    path = top / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, instrumented: bool, change: Change | None) -> None:
        super().__init__(name, path)
        self._instrumented, self._change = instrumented, change

    def get_code(self, fullname: str) -> CodeType | None:
        source = Path(self.path).read_text()
        code = compile(source if self._change is None else self._change.apply(source), self.path, "exec")
        if not self._instrumented:
            return code
        from atheris.instrument_bytecode import patch_code

        patched: CodeType = patch_code(code, True)
        return patched


class _Finder(MetaPathFinder):
    def __init__(self, modules: Collection[str], change: Change | None) -> None:
        self._modules, self._change = frozenset(modules), change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        change = self._change if self._change is not None and self._change.module == fullname else None
        if fullname not in self._modules and change is None:
            return None
        file = str(file_of(fullname))
        loader = _Loader(fullname, file, fullname in self._modules, change)
        submodules = [str(Path(file).parent)] if file.endswith("__init__.py") else None
        return importlib.util.spec_from_file_location(
            fullname, file, loader=loader, submodule_search_locations=submodules
        )


def install(modules: Collection[str], change: Change | None = None) -> None:
    """From now on these modules are imported instrumented, and one of them changed; none may be imported yet."""
    early = sorted({*modules, *([change.module] if change else [])} & set(sys.modules))
    if early:
        raise ValueError(f"{early} are imported already")
    sys.meta_path.insert(0, _Finder(modules, change))
