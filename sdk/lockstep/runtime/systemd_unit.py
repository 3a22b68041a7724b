"""Writes a systemd unit for a program: sandboxed, without a secret, with a long stop timeout for open claims and games.

A home's settings are in its `lockstep.toml`, mode 0600, because an RPC URL may contain a key. The unit names only
folders, the command and the password's file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.protocol.errors import UsageError

MARK = "# Written by lockstep {role} service install; lockstep {role} service uninstall removes it."
STOP_SECONDS = 14 * 86_400
"""Stop timeout in seconds: a claim can be challenged for its whole window (three days on MAINNET), and games follow."""
STAYS_DOWN = (2, 3, 4, 8)
"""Exit codes after which systemd does not restart the program: usage, machine, key, guard."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}", re.ASCII)


@dataclass(frozen=True)
class Unit:
    """The systemd unit of one program in one home."""

    role: str
    home: Path
    command: Path
    """The `lockstep` executable."""
    password_file: Path
    cache: Path
    """The folder of compiled code and of blobs."""
    flags: Sequence[str] = ()
    """Flags of `up`, in addition to the settings."""
    writable: Sequence[Path] = ()
    """Folders that the program may write, in addition to its home and the cache."""
    user: str = ""
    """The user that a system unit runs as; empty: a unit of the user's own."""

    def text(self) -> str:
        """Returns the text of the unit file."""
        role, system = self.role, bool(self.user)
        password = f"%d/{CREDENTIAL}" if system else quoted(self.password_file)
        start = " ".join([quoted(self.command), role, "up", "--password-file", password, *self.flags])
        folders = " ".join(dict.fromkeys(quoted(path) for path in (self.home, self.cache, *self.writable)))
        owner = [
            "# The password is read by the service manager: the program sees a copy that it alone can read.",
            f"LoadCredential={CREDENTIAL}:{escaped(str(self.password_file))}",
            f"User={self.user}",
        ]
        return "\n".join([
            MARK.format(role=role),
            "[Unit]",
            f"Description=Lockstep {role} in {escaped(str(self.home))}",
            "Wants=network-online.target",
            "After=network-online.target",
            "# A chain that is away for hours must not make the manager give up: a silent claim loses its stake.",
            "StartLimitIntervalSec=0",
            "",
            "[Service]",
            "Type=exec",
            f"WorkingDirectory={escaped(str(self.home))}",
            "# The settings that lie in a folder are taken where its user names it as the home.",
            f"Environment={quoted(Path(f'LOCKSTEP_HOME={self.home}'))} {quoted(Path(f'LOCKSTEP_CACHE={self.cache}'))}",
            f"ExecStart={start}",
            *(owner if system else []),
            "Restart=on-failure",
            "RestartSec=15",
            "# Usage, machine, key, guard: starting again changes nothing.",
            f"RestartPreventExitStatus={' '.join(map(str, STAYS_DOWN))}",
            "# SIGTERM drains: it leaves once nothing of it is at stake, and claims can be challenged for days.",
            "# To reboot in between, kill it (`systemctl kill --signal=SIGKILL`): it continues where it was.",
            f"TimeoutStopSec={STOP_SECONDS}",
            "KillMode=mixed",
            "UMask=0077",
            "NoNewPrivileges=yes",
            "ProtectSystem=strict",
            "ProtectHome=read-only",
            f"ReadWritePaths={folders}",
            "PrivateTmp=yes",
            "ProtectKernelTunables=yes",
            "ProtectKernelModules=yes",
            "ProtectKernelLogs=yes",
            "ProtectControlGroups=yes",
            "ProtectClock=yes",
            "ProtectHostname=yes",
            "RestrictSUIDSGID=yes",
            "RestrictRealtime=yes",
            "RestrictNamespaces=yes",
            "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
            "LockPersonality=yes",
            "CapabilityBoundingSet=",
            "SystemCallArchitectures=native",
            "# Not PrivateDevices and not MemoryDenyWriteExecute: CUDA needs its devices, compiled maps their code.",
            "",
            "[Install]",
            f"WantedBy={'multi-user.target' if system else 'default.target'}",
            "",
        ])  # fmt: skip


CREDENTIAL = "password"


def name_of(role: str, home: Path, given: str | None = None) -> str:
    """Returns the unit's name: lockstep-worker, or lockstep-worker-gpu0 for a home in the folder gpu0; raises
    UsageError."""
    last = given if given is not None else re.sub(r"[^a-z0-9_-]", "-", home.name.lower()).strip("-.")
    if given is not None and _NAME.fullmatch(given) is None:
        raise UsageError(f"--name is {given!r}", hint="use lower-case letters, digits, - and _")
    plain = f"lockstep-{role}"
    return plain if last in ("", role, "lockstep") else f"{plain}-{last}"


def settings_text(role: str, values: Mapping[str, object]) -> str:
    """Returns the text of a home's `lockstep.toml` with these settings."""
    import json

    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    return "\n".join([MARK.format(role=role), *lines, ""])


def is_ours(text: str, role: str) -> bool:
    """Returns True if `install` wrote the file, which may then be replaced."""
    return text.startswith(MARK.format(role=role))


def quoted(path: Path) -> str:
    """Quotes a path as one word of a command line or of a list of paths."""
    text = escaped(str(path))
    return f'"{text}"' if re.search(r"[\s;]", text) else text


def escaped(text: str) -> str:
    """Escapes % in a path, which begins a specifier in systemd; raises UsageError for characters that no unit can
    hold."""
    if re.search(r"[\x00-\x1f\x7f\"'\\$]", text):
        raise UsageError(
            f"the path {text!r} cannot be written in a unit",
            hint="use a path without quotes, backslashes, $ and line breaks",
        )
    return text.replace("%", "%%")
