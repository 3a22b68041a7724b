"""One JSON-RPC endpoint: connected, its chain checked, every failure to answer turned into `Unreachable`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lockstep.protocol.errors import ChainError, Unreachable

if TYPE_CHECKING:
    from web3 import Web3

TIMEOUT_SECONDS = 20.0
LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def connect(url: str, chain_id: int | None = None, timeout: float = TIMEOUT_SECONDS) -> Web3:
    """A web3 connection to `url` (http or https).

    Raises `Unreachable` if nobody answers there, `ChainError` if the chain is not `chain_id`. Every later request
    raises `Unreachable` too when the endpoint has gone.
    """
    from requests import Session
    from requests.exceptions import RequestException
    from web3 import HTTPProvider, Web3

    class Provider(HTTPProvider):
        """web3's own, with one kind of failure."""

        def make_request(self, method: Any, params: Any) -> Any:
            try:
                return super().make_request(method, params)
            except RequestException as failure:
                raise _unreachable(url, failure) from failure

        def make_batch_request(self, batch_requests: Any) -> Any:
            try:
                return super().make_batch_request(batch_requests)
            except RequestException as failure:
                raise _unreachable(url, failure) from failure

    if not url.startswith(("http://", "https://")):
        raise Unreachable(f"{url!r} is not an http(s) URL", "give the chain's RPC URL, as http://127.0.0.1:8545")
    session = Session()
    # A proxy never stands between a process and its own machine, and looking for one costs more than the request.
    session.trust_env = urlsplit(url).hostname not in LOOPBACK
    provider = Provider(url, request_kwargs={"timeout": timeout}, session=session, exception_retry_configuration=None)
    w3 = Web3(provider)
    actual = w3.eth.chain_id
    if chain_id is not None and actual != chain_id:
        raise ChainError(f"{url} is chain {actual}, not {chain_id}", "check the RPC URL and the addresses file")
    return w3


def _unreachable(url: str, failure: Exception) -> Unreachable:
    return Unreachable(
        f"the chain's RPC at {url} does not answer ({type(failure).__name__})",
        "start the node or check the URL; nothing is lost, what was sent is in the outbox",
    )
