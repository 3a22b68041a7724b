"""Markets by name: one file, a home for each role, unknown names refused with the nearest known one."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.settings import DEFAULTS as COORDINATORS
from coordinator.settings import resolve_coordinator
from lockstep.base import trust
from lockstep.base.networks import FIELDS
from lockstep.base.settings import DEFAULTS, resolve
from lockstep.protocol.errors import UsageError

SEPOLIA = """
[sepolia]
rpc = "https://rpc.example/key"
storage = "http://127.0.0.1:5001"
deployment = "sepolia.json"
coordinator = "https://lockstep.example"
home = "homes/{role}"
password_file = "/secrets/{role}"
"""
LOCAL = '[local]\nrpc = "http://127.0.0.1:1"\nstorage = "dir:///x"\ndeployment = "deployment.json"\nhome = "{role}"\n'


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's settings, and a folder to work in."""
    for name in [*DEFAULTS, "network"]:
        monkeypatch.delenv(f"LOCKSTEP_{name.upper()}", raising=False)
    monkeypatch.setenv("LOCKSTEP_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("LOCKSTEP_LOCAL", str(tmp_path / "local"))
    for name in ("config", "local", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "config/networks.toml").write_text(SEPOLIA)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def test_a_name_stands_for_every_place_and_a_home_for_each_role(user: Path) -> None:
    found = resolve("worker", network="sepolia")
    assert found.rpc == "https://rpc.example/key"
    assert found.deployment == str(user / "config/sepolia.json"), "beside the file"
    assert (found.home, found.password_file) == (str(user / "config/homes/worker"), "/secrets/worker")
    assert resolve("verifier", network="sepolia").home.endswith("homes/verifier")


def test_what_is_said_closer_wins(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (user / "config/config.toml").write_text('network = "sepolia"\nthreads = 3\nrpc = "http://of-config"\n')
    assert resolve().rpc == "https://rpc.example/key", "the network's before config.toml's"
    assert resolve().threads == 3
    file = user / "work/lockstep.toml"
    file.write_text('rpc = "http://of-file"\n')
    trust.accept(file, file.read_bytes())
    assert resolve().rpc == "http://of-file"
    monkeypatch.setenv("LOCKSTEP_RPC", "http://of-environment")
    assert resolve().rpc == "http://of-environment"
    assert resolve(rpc="http://of-flag").rpc == "http://of-flag"
    assert resolve(rpc="http://of-flag").coordinator == "https://lockstep.example", "the rest is the network's"


def test_the_local_market_is_found_while_it_is_up_unless_another_is_named(user: Path) -> None:
    assert resolve().rpc == DEFAULTS["rpc"]
    with pytest.raises(UsageError, match="no local market"):
        resolve(network="local")
    (user / "local/network.toml").write_text(LOCAL)
    assert (resolve().rpc, resolve("worker").home) == ("http://127.0.0.1:1", str(user / "local/worker"))
    assert resolve(network="local").rpc == resolve().rpc
    assert resolve(rpc="http://elsewhere").deployment == DEFAULTS["deployment"], (
        "who names a chain means another market"
    )
    assert resolve(network="sepolia").rpc == "https://rpc.example/key"


@pytest.mark.parametrize(
    ("text", "network", "named", "hint"),
    [
        (SEPOLIA, "sepola", "sepola", "'sepolia'"),
        (SEPOLIA.replace("storage", "storrage"), "sepolia", "storrage", "'storage'"),
        (SEPOLIA.replace('"dir', "dir") + "\nhome = ", "sepolia", "networks.toml", "repair"),
        ('rpc = "http://x"\n' + SEPOLIA, "sepolia", "'rpc'", "[NAME]"),
        ("[a]\nrpc = 7\n", "a", "rpc is 7", "quotes"),
    ],
)
def test_a_mistake_in_the_file_is_named(user: Path, text: str, network: str, named: str, hint: str) -> None:
    (user / "config/networks.toml").write_text(text)
    with pytest.raises(UsageError) as refused:
        resolve(network=network)
    assert named in refused.value.message
    assert hint in refused.value.hint


@pytest.mark.parametrize("name", [*DEFAULTS, "network"])
def test_every_typo_in_a_settings_file_is_refused_with_the_nearest_name(user: Path, name: str) -> None:
    typo = name[0] + name[2:]
    for file in (user / "work/lockstep.toml", user / "config/config.toml"):
        file.write_text(f'{typo} = "x"\n')
        with pytest.raises(UsageError, match=typo) as refused:
            resolve()
        assert repr(name) in refused.value.hint, refused.value.hint
        file.unlink()


@pytest.mark.parametrize("name", COORDINATORS)
def test_every_typo_in_a_coordinators_setting_is_refused_with_the_nearest_name(user: Path, name: str) -> None:
    typo = f"coordinator_{name[0]}{name[2:]}"
    (user / "work/lockstep.toml").write_text(f'{typo} = "x"\n')
    with pytest.raises(UsageError, match=typo) as refused:
        resolve_coordinator()
    assert repr(f"coordinator_{name}") in refused.value.hint, refused.value.hint


def test_every_typo_in_a_network_is_refused(user: Path) -> None:
    for name in FIELDS:
        (user / "config/networks.toml").write_text(f'[n]\n{name[:-1]} = "x"\n')
        with pytest.raises(UsageError) as refused:
            resolve(network="n")
        assert repr(name) in refused.value.hint


def test_a_network_names_its_fees_and_its_finality(user: Path) -> None:
    (user / "config/networks.toml").write_text(
        '[dear]\nrpc = "http://x"\nmax_fee = "40 gwei"\nfinality = "finalized"\n'
    )
    settings = resolve(network="dear")
    assert (settings.max_fee_wei, settings.max_tip_wei, settings.finality) == (40 * 10**9, None, "finalized")
    assert resolve(network="dear", max_fee="1 gwei").max_fee_wei == 10**9, "a flag is closer"
