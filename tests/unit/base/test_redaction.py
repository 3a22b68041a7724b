"""Of a URL that may hold a key, the scheme, host and port alone are shown."""

import pytest

from lockstep.base import redaction
from lockstep.base.redaction import HIDDEN, NO_URL, hide, redacted, scrubbed, shown, urls_of


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_secrets", {})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://mainnet.example.io/v3/0123456789abcdef", "https://mainnet.example.io"),
        ("https://user:password@example.io:8545/?key=k#f", "https://example.io:8545"),
        ("http://127.0.0.1:8545", "http://127.0.0.1:8545"),
        ("http://[::1]:8545/key", "http://[::1]:8545"),
        ("wss://example.io/key", "wss://example.io"),
        ("https://a.io/k1, https://b.io/k2", "https://a.io, https://b.io"),
        ("0123456789abcdef", NO_URL),
        ("example.io/key", NO_URL),
        ("http://[broken/key", NO_URL),
        ("http://example.io:port/key", NO_URL),
        ("", NO_URL),
        ("dir:///tmp/a,b", "dir:///tmp/a,b"),
        ("dir://~/blocks?key=k#f", "dir://~/blocks"),
        ("dir://user:pw@host/blocks", "dir://host"),
        ("dir:///a,b, gateway+https://u:pw@c.io/key", "dir:///a,b, gateway+https://c.io"),
        ("gateway+http://u:pw@a.io:9,gateway+https://b.io/?t=key", "gateway+http://a.io:9, gateway+https://b.io"),
        ("/ip4/127.0.0.1/tcp/5001/http", "/ip4/127.0.0.1/tcp/5001/http"),
        ("/ip4/127.0.0.1/tcp/5001/http?token=key", NO_URL),
        ("/ip4/1.2.3.4/tcp/1/http,gateway+https://u@c.io", "/ip4/1.2.3.4/tcp/1/http, gateway+https://c.io"),
        ("http://user:12/34@host", NO_URL),
        ("http://user:12#34@host", NO_URL),
        ("user:pw@host:5001", NO_URL),
        ("sqlite:////srv/index.sqlite", "sqlite:////srv/index.sqlite"),
        ("postgresql+psycopg://user:pw@db/name", "postgresql+psycopg://db"),
    ],
)
def test_the_host_alone_is_shown(url: str, shown: str) -> None:
    assert redacted(url) == shown


def test_a_list_is_taken_apart_at_its_commas() -> None:
    assert urls_of(" http://a, ,http://b,") == ["http://a", "http://b"]


@pytest.mark.parametrize(
    "told",
    [
        "401 Client Error for url: https://u:pass-word@a.io/v3/deadbeefcafe?token=t0k3n-value",
        "HTTPSConnectionPool(host='a.io', port=443): Max retries exceeded with url: /v3/deadbeefcafe?token=t0k3n-value",
        "the key deadbeefcafe, the token t0k3n-value, the password pass-word",
        "t0k3n-value",
        "as it is on the wire: /v3/sp%20ace%22d",
        'as JSON has it: {"path": "sp ace\\"d"}',
    ],
)
def test_no_part_of_a_hidden_url_is_left_in_a_text(told: str) -> None:
    hide('http://b.io/sp ace"d,https://u:pass-word@a.io/v3/deadbeefcafe?token=t0k3n-value')
    left = scrubbed(told)
    for secret in ("deadbeefcafe", "t0k3n-value", "pass-word", "ace"):
        assert secret not in left
    assert "https://a.io" in left or HIDDEN in left


def test_a_user_is_taken_out_of_any_url() -> None:
    assert scrubbed("no route to http://me:pw@a.io:9/x, nor to ws://k@b.io") == (
        "no route to http://a.io:9/x, nor to ws://b.io"
    )


def test_a_user_called_by_a_plain_word_leaves_the_word_to_others() -> None:
    hide("dir:///tmp/lockstep,gateway+https://lockstep:sh0rt@a.io")
    assert scrubbed('{"schema": "lockstep/1"} in /tmp/lockstep') == '{"schema": "lockstep/1"} in /tmp/lockstep'
    assert scrubbed("GET https://lockstep:sh0rt@a.io/ipfs") == "GET https://a.io/ipfs"


def test_a_setting_is_shown_by_its_hosts() -> None:
    given = {"storage": ["http://u:pw@a.io"], "home": "/home/me@work", "threads": 2, "rpc": "u:pw@a.io"}
    assert shown(given) == {"storage": ["http://a.io"], "home": "/home/me@work", "threads": 2, "rpc": NO_URL}


def test_what_is_no_secret_stays() -> None:
    hide("http://127.0.0.1:8545,https://a.io/v3/deadbeefcafe")
    kept = "worker v3 at http://127.0.0.1:8545 and https://a.io: http://127.0.0.1:8545/x"
    assert scrubbed(kept) == kept
