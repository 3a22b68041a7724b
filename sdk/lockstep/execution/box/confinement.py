"""Confines a process before it runs a stranger's Programs: no other processes, network or foreign files, bounded
memory.

    apart()                      # namespaces of its own: users, processes, network, IPC
    limited(limits)              # resource limits
    walled(readable, folder)     # Landlock: reads code and libraries, writes its own folder, signals nobody

Each function returns descriptions of what the kernel does not offer; the caller continues without. Only Linux offers
any.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.base.libc import libc

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x08000000, 0x10000000, 0x20000000, 0x40000000
SIGKILL = 9

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
"""Numbers of the Landlock system calls, which are equal on every architecture."""
LANDLOCK_VERSION = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
OLDEST = (1 << 13) - 1
"""Access rights that every version of Landlock knows."""
READS = EXECUTE | READ_FILE | READ_DIR
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""Access rights that a rule about a file, not a folder, can grant."""
TCP = 0b11
"""Access rights to bind and to connect TCP sockets."""
SCOPES = 0b11
"""Scopes that exclude abstract sockets and signals to processes outside."""

SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/alternatives", "/etc/ld.so.cache", "/sys/devices/system/cpu")
"""Folders of libraries and compilers."""
OFFERED = sys.platform == "linux"
"""False if this system has no confinement: Programs then run in the process that loads them."""
FILES = 256
"""Most open files of one process."""
PROCESSES = 256
"""Most processes and threads together: compilers and kernels' threads."""
OOM_SCORE = 1000
"""Highest OOM score: the kernel ends this process first when memory runs out."""


@dataclass(frozen=True)
class Allowance:
    """The resource limits of a confined process."""

    memory: int
    """Bytes of its own memory, in addition to what it has when the limits are set."""
    shared: int = 0
    """Bytes of shared segments and mapped files in addition."""
    file: int = 64 << 20
    """Most bytes of a file that it writes."""


def unshare_namespaces() -> list[str]:
    """Enters new namespaces; the next child of this process becomes process 1 of its namespace.

    Must be called before a second thread starts.
    """
    if sys.platform != "linux":
        return ["no namespaces: this system is not Linux"]
    user, group = os.geteuid(), os.getegid()
    if libc().unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWPID) == 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            try:
                Path("/proc/self", name).write_text(text)
            except OSError:
                return ["its user is not mapped into a namespace"]
        return []
    return [f"no namespaces of its own ({os.strerror(ctypes.get_errno())}): it sees the network and other processes"]


def set_rlimits(limits: Allowance, *, counted: bool) -> list[str]:
    """Sets the resource limits.

    `counted` states that this process is in a user namespace, whose processes alone are counted.
    """
    import resource

    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    space, data = _held()
    lacking = []
    wanted = [
        (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, FILES), (resource.RLIMIT_FSIZE, limits.file),
        (resource.RLIMIT_DATA, data + limits.memory), (resource.RLIMIT_AS, space + 2 * limits.memory + limits.shared),
        (resource.RLIMIT_MEMLOCK, 0),
    ]  # fmt: skip
    if counted:
        wanted.append((resource.RLIMIT_NPROC, PROCESSES))
    for kind, most in wanted:
        _, hard = resource.getrlimit(kind)
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (value, value))
    if not counted:
        lacking.append("its processes are not counted")
    try:
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    except OSError:
        lacking.append("when memory runs out, the kernel may end another process")
    return lacking


def busy_for(seconds: float) -> None:
    """Limits this process's processor time to what all processors provide in `seconds`, whether or not the parent
    waits.
    """
    import resource

    # INVARIANT: its processor time is bounded by its deadline, whoever waits.
    spent = resource.getrusage(resource.RUSAGE_SELF)
    due = math.ceil(spent.ru_utime + spent.ru_stime + seconds * (os.cpu_count() or 1)) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (due if hard == resource.RLIM_INFINITY else min(due, hard), hard))


def restrict_with_landlock(readable: Iterable[Path], folder: Path | None) -> list[str]:
    """Restricts this process to reading and executing files in `readable`, and to writing in `folder`."""
    version = _landlock(LANDLOCK_CREATE, None, 0, LANDLOCK_VERSION) if sys.platform == "linux" else -1
    if version < 1:
        return ["no Landlock: it may read and write what its user may"]
    # Each version of Landlock knows more rights; an unknown right cannot be restricted.
    newer = {2: REFER, 3: TRUNCATE, 5: IOCTL_DEV}
    rights = OLDEST | sum(right for since, right in newer.items() if version >= since)
    ruleset = struct.pack("=QQQ", rights, TCP if version > 3 else 0, SCOPES if version > 5 else 0)
    handle = _landlock(LANDLOCK_CREATE, ruleset, 8 if version < 4 else 16 if version < 6 else 24, 0)
    if handle < 0:
        return ["no Landlock: it may read and write what its user may"]
    try:
        for path in readable:
            _allow(handle, path, READS & rights)
        _allow(handle, Path("/dev/null"), (READ_FILE | WRITE_FILE) & rights)
        if folder is not None:
            _allow(handle, folder, rights & ~IOCTL_DEV)
        _prctl(PR_SET_NO_NEW_PRIVS, 1)
        if _landlock(LANDLOCK_RESTRICT, handle, 0) != 0:
            return ["no Landlock: it may read and write what its user may"]
    finally:
        os.close(handle)
    return [] if version > 5 else ["Landlock is old: it may signal other processes of its user"]


def code_folders() -> Sequence[Path]:
    """Returns the folders of this interpreter, its modules, libraries and compilers."""
    found = [Path(place) for place in (sys.prefix, sys.base_prefix, *SYSTEM, Path(__file__).parents[2])]
    found += [Path(p).parent for p in (sys.executable, os.path.realpath(sys.executable))]
    found += [Path(place) for place in sys.path if place and Path(place).name in ("site-packages", "dist-packages")]
    return [path for path in dict.fromkeys(found) if path.exists()]


def die_with_parent() -> None:
    """Makes the kernel kill this process when the thread that forked it ends; does nothing on other systems."""
    if sys.platform == "linux":
        _prctl(PR_SET_PDEATHSIG, SIGKILL)


# -- inside


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _landlock(number: int, *arguments: object) -> int:
    """Makes a system call; numbers are passed as longs, bytes by their address."""
    passed = [ctypes.c_char_p(a) if isinstance(a, bytes | None) else ctypes.c_long(a) for a in arguments]  # type: ignore[arg-type]
    return int(libc().syscall(ctypes.c_long(number), *passed, ctypes.c_long(0), ctypes.c_long(0)))


def _allow(handle: int, path: Path, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rule = struct.pack("=Qi", rights if path.is_dir() else rights & OF_FILES, place)
        _landlock(LANDLOCK_ADD, handle, 1, rule, 0)
    finally:
        os.close(place)


def _held() -> tuple[int, int]:
    """Returns (bytes of address space, bytes of data) of this process."""
    try:
        fields = Path("/proc/self/statm").read_text().split()
        space, data = int(fields[0]), int(fields[5])
    except (OSError, ValueError, IndexError):
        return 0, 0
    return space * os.sysconf("SC_PAGE_SIZE"), data * os.sysconf("SC_PAGE_SIZE")
