"""The cache of compiled libraries: what is loaded is what this user wrote, whoever dies or writes beside it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.numerics import compiled, libraries
from lockstep.numerics.libraries import BuildRecipe
from lockstep.protocol.errors import DoctorError
from tests.support.waiting import PATIENCE, wait

pytestmark = pytest.mark.skipif(libraries.find_compiler() is None, reason="no C++ compiler on this machine")

SOURCE = 'extern "C" int answer() { return 42; }\n'
FLAGS = ("-shared", "-fPIC")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def recipe(source: str = SOURCE) -> BuildRecipe:
    compiler = libraries.find_compiler()
    assert compiler is not None
    return BuildRecipe(source, FLAGS, compiler)


def answer(library: ctypes.CDLL | None) -> int:
    assert library is not None
    return int(library.answer())


def only_library(cache: Path) -> Path:
    [place] = cache.glob("*.so")
    return place


def test_a_library_is_built_once_and_found_again(cache: Path) -> None:
    assert libraries.cached(recipe()) is None
    assert answer(libraries.build(recipe())) == 42
    written = only_library(cache).stat()
    assert answer(libraries.build(recipe())) == 42
    assert answer(libraries.cached(recipe())) == 42
    assert only_library(cache).stat().st_ino == written.st_ino, "not compiled again"
    assert cache.stat().st_mode & 0o777 == 0o700
    assert written.st_mode & 0o777 == 0o600
    assert not list(cache.glob("build-*"))


def test_another_source_flag_or_compiler_is_another_library() -> None:
    base = recipe()
    other = libraries.Compiler(base.compiler.command, base.compiler.version + "patched")
    keys = {
        r.key
        for r in (
            base,
            recipe(SOURCE + "\n"),
            BuildRecipe(SOURCE, (), base.compiler),
            BuildRecipe(SOURCE, FLAGS, other),
        )
    }
    assert len(keys) == 4


def test_a_damaged_or_foreign_library_is_removed_and_built_again(cache: Path, tmp_path: Path) -> None:
    wanted = recipe(SOURCE.replace("42", "43"))
    libraries.build(recipe())
    foreign = only_library(cache).read_bytes()
    place = cache / f"{wanted.key.hex()[:40]}.so"
    libraries.build(wanted)
    sound = place.read_bytes()
    middle = len(sound) // 2
    damaged = {
        "flipped": sound[:middle] + bytes([sound[middle] ^ 1]) + sound[middle + 1 :],
        "truncated": sound[:middle],
        "emptied": b"",
        "another's": foreign,
        "writable": sound,
        "linked": sound,
    }
    for damage, content in damaged.items():
        place.unlink()  # the loaded one keeps its own file
        if damage == "linked":
            (tmp_path / "elsewhere").write_bytes(content)
            place.symlink_to(tmp_path / "elsewhere")
        else:
            place.write_bytes(content)
            place.chmod(0o666 if damage == "writable" else 0o600)
        assert libraries.cached(wanted) is None, damage
        assert answer(libraries.build(wanted)) == 43, damage
        assert place.read_bytes()[-32:] == sound[-32:] or libraries.cached(wanted) is not None, damage


def test_a_cache_that_is_open_to_others_is_refused(cache: Path) -> None:
    cache.mkdir(mode=0o755)
    with pytest.raises(DoctorError, match="open to others"):
        libraries.build(recipe())


def test_a_cache_or_a_file_of_another_user_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries.build(recipe())
    place = only_library(cache)
    monkeypatch.setattr(os, "geteuid", lambda: place.stat().st_uid + 1)
    with pytest.raises(DoctorError, match="open to others"):
        libraries.cached(recipe())
    with pytest.raises(DoctorError, match="open to others"):
        compiled.entries()
    monkeypatch.setattr(compiled, "cache_directory", lambda: cache)
    assert libraries.cached(recipe()) is None
    assert not place.exists(), "what somebody else placed is removed"


def test_a_link_in_the_place_of_the_cache_is_no_way_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "link"))
    with pytest.raises(DoctorError, match="open to others"):
        libraries.build(recipe())


def test_a_header_is_part_of_the_library(cache: Path, tmp_path: Path) -> None:
    header = tmp_path / "answer.hpp"
    header.write_text("constexpr int kAnswer = 42;")
    compiler = recipe().compiler
    own = BuildRecipe('#include "answer.hpp"\nextern "C" int answer() { return kAnswer; }', FLAGS, compiler, (header,))
    assert answer(libraries.build(own)) == 42
    header.write_text("constexpr int kAnswer = 43;")
    assert libraries.cached(own) is None
    assert answer(libraries.build(own)) == 43


def test_the_files_together_are_bounded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries.build(recipe())
    size = only_library(cache).stat().st_size
    monkeypatch.setattr(compiled, "KEPT_BYTES", 2 * size + size // 2)
    for i in range(4):
        libraries.build(recipe(SOURCE + f"// {i}\n"))
    assert len(compiled.entries()) == 2
    monkeypatch.setattr(compiled, "KEPT_BYTES", 1)
    assert answer(libraries.build(recipe(SOURCE + "// last\n"))) == 42, "what was made last stays"


def test_a_cache_that_cannot_be_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "file/cache"))
    with pytest.raises(DoctorError, match="cannot be a cache"):
        libraries.build(recipe())


def test_those_unused_for_longest_go_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "KEPT", 2)
    recipes = [recipe(SOURCE + f"// {i}\n") for i in range(3)]
    for i, each in enumerate(recipes):
        libraries.build(each)
        os.utime(cache / f"{each.key.hex()[:40]}.so", (1000 + i, 1000 + i))
        if i == 1:
            libraries.cached(recipes[0])  # used again: the second is the oldest now
    assert [libraries.cached(each) is not None for each in recipes] == [True, False, True]


BUILD = """
import os, sys
from lockstep.numerics import libraries
source, processes = open(sys.argv[1]).read(), int(sys.argv[2])
any(os.fork() == 0 for _ in range(processes - 1))
library = libraries.build(libraries.BuildRecipe(source, ("-shared", "-fPIC"), libraries.find_compiler()))
sys.stdout.write(f"{library.answer()}\\n")  # at once: others write there, too
"""


def counting_compiler(folder: Path, seconds: float) -> Path:
    """A compiler that takes its time and leaves a file for each call."""
    real = libraries.find_compiler()
    assert real is not None
    script = folder / "counting-c++"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec echo counting 1.0\n'
        f'touch "{folder}/call-$$"\nsleep {seconds}\nexec {" ".join(real.command)} "$@"\n'
    )
    script.chmod(0o755)
    return script


def builder(folder: Path, compiler: Path, processes: int = 1) -> subprocess.Popen[str]:
    """Processes that build one library and print its answer: forks of the first, so that one of them imports."""
    source = folder / "source.cpp"
    source.write_text(SOURCE)
    environment = {**os.environ, "CXX": str(compiler)}
    command = [sys.executable, "-c", BUILD, str(source), str(processes)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_sixteen_processes_at_once_compile_once(cache: Path, tmp_path: Path) -> None:
    compiler = counting_compiler(tmp_path, 1)
    said, _ = builder(tmp_path, compiler, processes=16).communicate(timeout=PATIENCE)
    assert said.split() == ["42"] * 16
    assert len(list(tmp_path.glob("call-*"))) == 1
    assert not list(cache.glob("build-*"))


def test_a_builder_that_is_killed_leaves_nothing_that_is_loaded(cache: Path, tmp_path: Path) -> None:
    victim = builder(tmp_path, counting_compiler(tmp_path, 60))
    wait(lambda: bool(list(tmp_path.glob("call-*"))), "a call of the compiler")
    assert list(cache.glob("build-*")), "it was killed while it built"
    os.killpg(victim.pid, signal.SIGKILL)
    victim.communicate()
    assert not list(cache.glob("*.so"))
    assert answer(libraries.build(recipe())) == 42, "the lock died with its holder"
    assert not list(cache.glob("build-*")), "what it left is swept"
