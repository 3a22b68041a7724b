"""Of a URL that may hold a key, the scheme, host and port alone are shown."""

import pytest

from lockstep.base import redaction
from lockstep.base.redaction import HIDDEN, NO_URL, hide, redacted, scrubbed, urls_of


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


def test_what_is_no_secret_stays() -> None:
    hide("http://127.0.0.1:8545,https://a.io/v3/deadbeefcafe")
    kept = "worker v3 at http://127.0.0.1:8545 and https://a.io: http://127.0.0.1:8545/x"
    assert scrubbed(kept) == kept
