"""A child that dies, hangs, lies or was taken over harms nobody but its own job."""

from __future__ import annotations

import errno
import itertools
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from lockstep.execution import footprint
from lockstep.execution.box import handle, wire
from lockstep.execution.box.confinement import FILES, Allowance
from lockstep.execution.box.handle import Box, Cancelled, Starved
from lockstep.execution.jobs import Job
from lockstep.protocol.errors import (
    BlobMissing,
    Crashed,
    DoctorError,
    LockstepError,
    ProgramInvalid,
    TryLater,
    UsageError,
)
from lockstep.storage import ContentStore
from lockstep.storage.containers import encode_program
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.unixfs import MAX_BLOCK_BYTES
from tests.support import broken
from tests.support.descriptors import open_files
from tests.support.takeover import SECONDS, Exploit, exploit

LIMITS = Allowance(memory=256 << 20)


@pytest.fixture
def box(toy_store: ContentStore) -> Iterator[Box]:
    with Box(LIMITS, toy_store) as made:
        yield made


@pytest.fixture(scope="module")
def probed(toy_store: ContentStore) -> Iterator[Box]:
    """One child for tests that leave it alive, on a kernel that offers all of the confinement."""
    with Box(LIMITS, toy_store) as made:
        if made.lacking:
            pytest.skip("; ".join(made.lacking))
        yield made


@pytest.fixture
def walled(box: Box) -> Box:
    """A child of its own on such a kernel."""
    if box.lacking:
        pytest.skip("; ".join(box.lacking))
    return box


def test_kept_tensors_take_no_open_file_of_either_side(probed: Box) -> None:
    before = open_files("memfd:")
    held = [probed.segments.room([(np.dtype(np.float32), (4,))]) for _ in range(FILES + 1)]
    assert exploit(probed, "found = 'told'") == "told"
    assert open_files("memfd:") <= before
    del held


def test_a_child_that_can_map_no_more_is_no_fault_of_its_job(walled: Box) -> None:
    exploit(walled, "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))")
    held = walled.segments.room([(np.dtype(np.float32), (1 << 20,))])
    with pytest.raises(Starved, match="more memory"):
        exploit(walled, "")
    assert not walled.alive
    del held


def load(box: Box, job: Job, role: footprint.Role = footprint.worker) -> dict[str, object]:
    found: dict[str, object] = box.call(
        "load", seconds=SECONDS, params=job.params, threads=1, path="auto", role=role
    )  # fmt: skip
    return found


def test_a_job_is_decoded_and_planned(probed: Box, toy: Job) -> None:
    need = footprint.worker(toy.programs, toy.params.role.slots)
    assert load(probed, toy)["memory"] == need.total


def test_errors_of_the_work_are_its_own_and_the_child_goes_on(probed: Box, toy: Job) -> None:
    load(probed, toy)
    with pytest.raises(UsageError):
        probed.call("decode", seconds=SECONDS, cid="no CID")
    with pytest.raises(LockstepError, match="TypeError"):
        load(probed, toy, role=len)  # type: ignore[arg-type]
    assert load(probed, toy)["operations"]


def test_a_kind_of_error_that_the_parent_does_not_know_is_the_nearest_that_it_does(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    broken_one = store.put(encode_program(broken.step_program(), store.put))
    with Box(LIMITS, store) as box, pytest.raises(ProgramInvalid, match="33 instructions") as told:
        box.call("decode", seconds=SECONDS, cid=broken_one, threads=1)
    assert told.value.code == "program_invalid"


def test_the_stores_error_is_the_parents_own(toy: Job, tmp_path: Path) -> None:
    with Box(LIMITS, DirectoryStore(tmp_path)) as box:
        with pytest.raises(BlobMissing):
            load(box, toy)
        assert box.alive


def test_a_child_is_handed_no_more_than_its_job_may_hold(toy: Job, toy_store: ContentStore) -> None:
    with Box(LIMITS, toy_store) as box:
        box._limits = Allowance(memory=1 << 10)
        with pytest.raises(Crashed, match="asks for more"):
            load(box, toy)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os; os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os; os.abort()", "SIGABRT"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import os; os._exit(0)", "exit status 0"),
        ("held = bytearray(1 << 30)", "exit status 1"),
        ("import os; os.close(wire)", "exit status 1"),
        ("import os; os.write(wire, b'x' * 4096); import time; time.sleep(1000)", "a message of"),
        ("import os; os.write(wire, bytes(7) + b'\\x01' + b'\\xff'); import time; time.sleep(1000)", "malformed"),
        (
            "import os; os.write(wire, bytes(7) + b'\\x01' + b'\\xa0'); import time; time.sleep(1000)",
            "its answer is malformed",
        ),
    ],
)
def test_a_child_that_dies_or_talks_nonsense_is_dead_for_good(box: Box, toy: Job, code: str, why: str) -> None:
    with pytest.raises(Crashed, match=why):
        exploit(box, code)
    assert not box.alive
    with pytest.raises(Crashed, match=why):
        load(box, toy)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("code", ["import time; time.sleep(1000)", "while True: pass", "sum(range(1 << 60))"])
def test_a_child_that_is_late_is_ended(box: Box, code: str) -> None:
    with pytest.raises(Crashed, match="was not done after"):
        exploit(box, code, seconds=0.2)
    assert not box.alive


def asking(cid: str, then: str) -> str:
    """Code of a child that asks for a block, over and over, and does `then` after each."""
    return f"""
import dag_cbor, os, time
wanted = dag_cbor.encode({{"want": "block", "cid": {cid!r}, "size": 0}})
while True:
    os.write(wire, len(wanted).to_bytes(8, "big") + wanted)
    {then}
"""


def test_a_child_that_does_not_read_what_it_asked_for_is_ended(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    cid = store.put_block(bytes(MAX_BLOCK_BYTES), "raw")
    with Box(LIMITS, store) as box:
        with pytest.raises(Crashed, match="was not done after"):
            exploit(box, asking(cid, "time.sleep(1000)"), seconds=0.2)
        assert not box.alive


def test_a_store_that_failed_is_waited_for_no_more_in_an_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, asked = DirectoryStore(tmp_path), list[str]()

    def fetched(cid: str) -> bytes:
        asked.append(cid)
        raise BlobMissing("nobody has it", "")

    monkeypatch.setattr(store, "fetch_block", fetched)
    with Box(LIMITS, store) as box, pytest.raises(Crashed, match="was not done after"):
        exploit(box, asking("bafkreigh2akiscaildc", "os.read(wire, 1 << 16)"), seconds=0.5)
    assert len(asked) == 1


def test_memory_that_runs_out_in_the_work_is_told(box: Box, toy: Job) -> None:
    load(box, toy)
    with pytest.raises(Crashed, match=r"more than .* of memory"):
        box.call("roots", seconds=SECONDS, program=toy.programs.step.root, state=_Huge(), context=None, dataset=None)


class _Huge:
    """A list that has no end, once the child has it in hand."""

    def __reduce__(self) -> tuple[object, ...]:
        return itertools.repeat, (None,)


def test_work_is_cancelled_from_another_thread(box: Box) -> None:
    done: list[Exception] = []
    begun = threading.Event()

    def work() -> None:
        begun.set()
        try:
            exploit(box, "while True: pass", seconds=600)
        except Exception as error:
            done.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    box.cancel()
    thread.join()
    assert [type(error) for error in done] == [Cancelled]
    with pytest.raises(Cancelled):
        exploit(box, "found = 1")


@pytest.mark.parametrize("said", [{"done": 1}, {"error": {"kinds": ["LockstepError"], "message": "", "hint": ""}}])
def test_what_a_child_says_after_its_end_is_no_result(
    box: Box, said: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered(*_: object) -> dict[str, object]:
        box.cancel()
        return said

    monkeypatch.setattr(wire, "answered", answered)
    with pytest.raises(Cancelled):
        exploit(box, "found = 1")


def test_what_a_child_says_is_told_without_control_characters(probed: Box) -> None:
    assert "\x1b" not in exploit(probed, "found = '\\x1b]52;c;aGk=\\x07'")


def test_a_child_is_busy_no_longer_than_all_processors_could_be_though_nobody_waits(box: Box) -> None:
    given = {"program": b"", "state": (), "context": None, "dataset": None}
    box._tell(math.inf, verb="roots", given=given, seconds=0)
    assert "error" in wire.answered(box._wire, math.inf), "no Program has this name"
    # What takes it over does so as it reads, in the time of the order before.
    box._tell(math.inf, verb="roots", given=given | {"program": Exploit("while True: pass")}, seconds=SECONDS)
    with pytest.raises(wire.Ended):
        wire.answered(box._wire, math.inf)
    assert box._death() == "SIGXCPU"


# -- a system that starts none


def started_by(monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    """Has every child run some Python first."""

    def started(theirs: socket.socket, folder: Path | None) -> subprocess.Popen[bytes]:
        code = f"import os\n{before}\nfrom lockstep.execution.box import child\nchild.main()"
        command, fd = [sys.executable, "-c", code], theirs.fileno()
        return subprocess.Popen([*command, str(fd)], pass_fds=[fd], stdin=subprocess.PIPE)

    monkeypatch.setattr(handle, "_started", started)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EPERM, DoctorError), (errno.ENOSYS, DoctorError), (errno.EAGAIN, TryLater), (errno.ENOMEM, TryLater)],
)
def test_what_a_system_refuses_for_good_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, number: int, kind: type[LockstepError]
) -> None:
    with monkeypatch.context() as refusing:
        started_by(refusing, f"def fork(): raise OSError({number}, 'no')\nos.fork = fork")
        with pytest.raises(kind, match=os.strerror(number)) as refused:
            Box(LIMITS)
        assert "lockstep doctor" in refused.value.hint

    def no(*_: object, **__: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(subprocess, "Popen", no)
    with pytest.raises(kind, match=os.strerror(number)):
        Box(LIMITS)


def test_code_that_an_isolated_python_does_not_find_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where lockstep lies in a folder that only PYTHONPATH names."""
    monkeypatch.setattr(handle, "CHILD", "lockstep_elsewhere.child")
    with pytest.raises(DoctorError, match="No module named 'lockstep_elsewhere'") as refused:
        Box(LIMITS)
    assert "PYTHONPATH" in refused.value.hint


def test_a_child_starts_where_no_process_has_a_file_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = "def no(*_): raise PermissionError(1, 'no')\nos.pidfd_open = no"
    started_by(monkeypatch, denied)
    with Box(LIMITS) as box:
        assert exploit(box, "found = 1") == "1"
        pid = box._process.pid
    assert not Path(f"/proc/{pid}").exists()


# -- what a child that was taken over reaches


def test_it_has_no_secret_in_its_environment_and_no_open_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_PASSWORD", "swordfish")
    with Box(LIMITS) as box, open(os.devnull) as file:
        os.set_inheritable(file.fileno(), True)
        assert "LOCKSTEP_PASSWORD" not in exploit(box, "import os; found = dict(os.environ)")
        found = exploit(
            box,
            "import os\n"
            "def held(n):\n"
            "    try: os.fstat(n); return True\n"
            "    except OSError: return False\n"
            "found = [n for n in range(256) if held(n)] == [1, 2, wire]",
        )
        assert found == "True"


def test_it_reads_and_writes_no_file_of_its_user(probed: Box, tmp_path: Path) -> None:
    secret = tmp_path / "key.json"
    secret.write_text("secret")
    for path, mode in ((secret, "r"), (secret, "a"), (tmp_path / "new", "w")):
        code = f"try: open({str(path)!r}, {mode!r}); found = 'open'\nexcept OSError as e: found = type(e).__name__"
        assert exploit(probed, code) == "PermissionError", (path, mode)
    for name in ("environ", "mem"):
        code = f"try: open('/proc/{os.getpid()}/{name}', 'rb'); found = 'open'\nexcept OSError as e: found = 'closed'"
        assert exploit(probed, code) == "closed"
    assert secret.read_text() == "secret"
    assert [p.name for p in tmp_path.iterdir()] == ["key.json"]


def test_it_writes_in_its_own_folder_files_of_bounded_size(tmp_path: Path) -> None:
    with Box(Allowance(memory=64 << 20, file=4096), None, tmp_path) as box:
        where = str(tmp_path / "own")
        code = f"f = open({where!r}, 'wb', 0); found = f.write(b'x' * 4096)"
        assert exploit(box, code) == "4096"
        code = (
            "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            f"try: found = open({where!r}, 'ab', 0).write(b'x')\nexcept OSError as e: found = e.errno"
        )
        assert exploit(box, code) == "27"


def test_it_has_no_network(probed: Box) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = (
            f"import socket\ntry: socket.create_connection(('127.0.0.1', {server.getsockname()[1]})); found = 'open'\n"
            "except OSError as e: found = 'closed'"
        )
        assert exploit(probed, code) == "closed"
    code = (
        "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "try: s.sendto(b'x', ('127.0.0.1', 9)); found = 'sent'\nexcept OSError as e: found = 'closed'"
    )
    assert exploit(probed, code) == "closed"


def test_it_signals_nobody_outside(walled: Box) -> None:
    for pid in (os.getpid(), walled._process.pid):
        code = f"import os\ntry: os.kill({pid}, 9); found = 'sent'\nexcept OSError as e: found = 'refused'"
        assert exploit(walled, code) == "refused"
    with pytest.raises(Crashed):
        exploit(walled, "import os, signal; os.kill(-1, signal.SIGTERM); os._exit(3)")


def test_what_it_forks_ends_with_it(walled: Box) -> None:
    """Whoever it forks holds the wire's other end, so that the wire ends with the last of them."""
    ours = socket.socket(fileno=os.dup(walled._wire.fileno()))
    code = (
        "import os, time\n"
        "for _ in range(40):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid(); time.sleep(100000)\n"
        "found = 'forked'"
    )
    assert exploit(walled, code) == "forked"
    walled.cancel()
    with ours:
        ours.settimeout(None)
        with suppress(ConnectionResetError):
            assert ours.recv(1) == b""


def test_a_child_ends_with_its_parent(walled: Box) -> None:
    code = (
        "from lockstep.execution.box.handle import Box; from lockstep.execution.box.confinement import Allowance\n"
        "box = Box(Allowance(1 << 28)); print(box._process.pid, flush=True); box._process.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        try:
            select.select([child], [], [])  # until it has ended
        finally:
            os.close(child)
