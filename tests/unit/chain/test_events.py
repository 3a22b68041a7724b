"""Events: once each, in order, whatever the polls; a reorganised chain is noticed."""

import pytest
from eth_account.signers.local import LocalAccount

from lockstep.chain import ranges
from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Contracts
from lockstep.chain.devnet import Local
from lockstep.chain.events import Cursor, EventReader
from lockstep.protocol.errors import UsageError
from lockstep.protocol.types import Wei
from tests.unit.chain.conftest import OpenOutbox

pytestmark = pytest.mark.chain


def _deposit(contracts: Contracts, outbox: object, key: str, amount: int) -> None:
    outbox.send(contracts.vault.deposit(Wei(amount)), key)  # type: ignore[attr-defined]


def test_each_event_comes_once_and_in_order(
    devnet: Local, addresses: Addresses, contracts: Contracts, rich: LocalAccount, open_outbox: OpenOutbox
) -> None:
    outbox, reader = open_outbox(rich), EventReader(devnet.w3, addresses)
    cursor = reader.poll(reader.start()).cursor
    seen = []
    for amount in (1, 2, 3):
        _deposit(contracts, outbox, str(amount), amount)
        batch = reader.poll(Cursor.loads(cursor.dumps()))
        seen += batch.events
        cursor = batch.cursor
    assert [event.amount for event in seen] == [1, 2, 3]
    assert {event.name for event in seen} == {"Deposited"}
    assert [event.key for event in seen] == sorted(event.key for event in seen)
    assert seen[0].account == rich.address, "checksummed"
    assert seen[0].time == devnet.w3.eth.get_block(seen[0].block)["timestamp"]
    again = reader.poll(cursor)
    assert again.events == ()
    assert again.cursor == cursor, "nothing new: the same cursor"


def test_a_reorganised_chain_rolls_back_to_the_common_block(
    devnet: Local, addresses: Addresses, contracts: Contracts, rich: LocalAccount, open_outbox: OpenOutbox
) -> None:
    outbox, reader = open_outbox(rich), EventReader(devnet.w3, addresses)
    cursor = reader.poll(reader.start()).cursor
    mark, common = devnet.snapshot(), devnet.w3.eth.block_number
    _deposit(contracts, outbox, "lost", 11)
    cursor = reader.poll(cursor).cursor
    devnet.revert(mark)
    outbox.close()
    devnet.mine(1)
    _deposit(contracts, open_outbox(rich, "other.db"), "kept", 22)

    batch = reader.poll(cursor)

    assert batch.rolled_back_to == common, "everything above is to be forgotten"
    assert [event.amount for event in batch.events] == [22]
    assert reader.poll(batch.cursor).rolled_back_to is None


def test_a_chain_shorter_than_the_cursor_rolls_back(
    devnet: Local, addresses: Addresses, contracts: Contracts, rich: LocalAccount, open_outbox: OpenOutbox
) -> None:
    reader = EventReader(devnet.w3, addresses)
    cursor = reader.poll(reader.start()).cursor
    mark, common = devnet.snapshot(), devnet.w3.eth.block_number
    devnet.mine(5)
    cursor = reader.poll(cursor).cursor
    devnet.revert(mark)
    batch = reader.poll(cursor)
    assert batch.rolled_back_to == common
    assert batch.events == ()


def test_a_long_way_is_read_in_chunks(
    devnet: Local, addresses: Addresses, contracts: Contracts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "CHUNK_BLOCKS", 3)
    reader = EventReader(devnet.w3, addresses)
    whole, cursor = [], reader.start()
    while (batch := reader.poll(cursor)).cursor != cursor:
        assert batch.cursor.next_block - cursor.next_block <= 3
        whole += batch.events
        cursor = batch.cursor
    assert cursor.next_block == devnet.w3.eth.block_number + 1
    monkeypatch.setattr(ranges, "CHUNK_BLOCKS", 10**6)
    assert list(reader.poll(reader.start()).events) == whole


def test_confirmations_hold_events_back(
    devnet: Local, addresses: Addresses, contracts: Contracts, rich: LocalAccount, open_outbox: OpenOutbox
) -> None:
    reader = EventReader(devnet.w3, addresses, confirmations=2)
    devnet.mine(2)
    cursor = reader.poll(reader.start()).cursor
    _deposit(contracts, open_outbox(rich), "late", 5)
    assert reader.poll(cursor).events == ()
    devnet.mine(2)
    assert [event.amount for event in reader.poll(cursor).events] == [5]


@pytest.mark.parametrize("text", ["", "{}", '{"next_block": "x", "recent": []}', "[1]"])
def test_a_damaged_cursor_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cursor"):
        Cursor.loads(text)
