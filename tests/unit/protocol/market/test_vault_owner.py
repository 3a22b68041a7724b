"""An account's owner: who may do what, and where the money goes, in the vault's twin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockstep.protocol.errors import ChainError
from lockstep.protocol.jobs import ZERO_ADDRESS
from lockstep.protocol.market.calls import Block
from lockstep.protocol.market.types import Keeper
from lockstep.protocol.reverts import Reverted
from lockstep.protocol.types import Address, Seconds
from tests.support.ledger import Books

OPERATOR, OWNER, HEIR, THIEF = (Address(f"0x{0xA0 + i:040x}") for i in range(4))
KEY = b"k" * 32
DELAY = Seconds(50)


class Scene:
    """A vault in which the operator has 100 staked; every act by its name in the contract."""

    def __init__(self) -> None:
        self.books = Books.of(DELAY)
        self.ledger = self.books.ledger
        self.books.deposit(OPERATOR, 100)

    def do(self, sender: Address, verb: str, *arguments: object, now: int = 0) -> None:
        self.ledger.do("StakeVault", verb, sender, *arguments, block=Block(1, Seconds(now)))

    def refused(self, sender: Address, verb: str, *arguments: object, now: int = 0) -> str:
        """The rule that it breaks; nothing has happened."""
        before = self.ledger.state
        with pytest.raises((Reverted, ChainError)) as caught:
            self.do(sender, verb, *arguments, now=now)
        assert self.ledger.state is before
        assert isinstance(caught.value, Reverted)
        return caught.value.rule

    def wallet(self, account: Address) -> int:
        return self.ledger.state.balances[account]

    def earn(self, account: Address, amount: int) -> None:
        """By winning a bond."""
        key, bond, game = b"bond".ljust(32), amount * 100 // 60, self.ledger.state.at.game
        self.books.deposit(HEIR, bond)
        self.books.lock(HEIR, key, bond, Keeper.GAME)
        self.ledger.do("StakeVault", "takeBond", game, key, account, bond)


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    assert scene.books.owed == scene.books.tokens, "the books are what the token holds"


def test_a_stolen_operator_key_moves_nothing_to_anybody_but_the_owner(scene: Scene) -> None:
    scene.earn(OPERATOR, 60)
    scene.do(OPERATOR, "requestUnbond", 30)
    scene.do(OPERATOR, "setOwner", OWNER)
    for verb, *arguments in (
        ("setOwner", THIEF), ("setOwner", ZERO_ADDRESS), ("requestUnbond", 1), ("setDelegate", THIEF),
        ("requestUnbondFor", OPERATOR, 1), ("withdrawFor", OPERATOR), ("withdrawUnbondedFor", OPERATOR),
        ("setDelegateFor", OPERATOR, THIEF), ("proposeOwner", OPERATOR, THIEF),
    ):  # fmt: skip
        assert scene.refused(OPERATOR, verb, *arguments, now=50) == "NotOwner", verb
    assert scene.refused(OPERATOR, "acceptOwner", OPERATOR) == "Unauthorized"
    scene.do(OPERATOR, "withdraw", now=50)
    scene.do(OPERATOR, "withdrawUnbonded", now=50)
    assert (scene.wallet(OPERATOR), scene.wallet(OWNER)) == (0, 90), "what it pushes goes to the owner"


def test_an_owner_unbonds_and_is_paid(scene: Scene) -> None:
    scene.do(OPERATOR, "setOwner", OWNER)
    scene.earn(OPERATOR, 60)
    assert scene.refused(OWNER, "requestUnbondFor", OPERATOR, 101) == "StakeTooLow"
    scene.do(OWNER, "requestUnbondFor", OPERATOR, 100)
    assert scene.refused(OWNER, "withdrawUnbondedFor", OPERATOR, now=49) == "Unbonding"
    scene.do(OWNER, "withdrawUnbondedFor", OPERATOR, now=50)
    scene.do(OWNER, "withdrawFor", OPERATOR)
    assert scene.wallet(OWNER) == 160
    assert scene.refused(OWNER, "withdrawFor", OPERATOR) == "NothingDue"


def test_an_owner_hands_on_in_two_steps_and_a_typo_loses_nothing(scene: Scene) -> None:
    scene.do(OPERATOR, "setOwner", OWNER)
    scene.do(OWNER, "proposeOwner", OPERATOR, THIEF)
    scene.do(OWNER, "requestUnbondFor", OPERATOR, 10)
    scene.do(OWNER, "proposeOwner", OPERATOR, HEIR)
    assert scene.refused(THIEF, "acceptOwner", OPERATOR) == "Unauthorized"
    scene.do(HEIR, "acceptOwner", OPERATOR)
    assert scene.ledger.ask("StakeVault", "ownerOf", OPERATOR) == HEIR
    assert scene.ledger.ask("StakeVault", "proposedOwnerOf", OPERATOR) == ZERO_ADDRESS
    assert scene.refused(OWNER, "withdrawUnbondedFor", OPERATOR, now=50) == "NotOwner"
    scene.do(HEIR, "withdrawUnbondedFor", OPERATOR, now=50)
    assert scene.wallet(HEIR) == 10, "also what the owner before had asked for"


def test_a_proposal_falls_with_the_owner_that_made_it(scene: Scene) -> None:
    scene.do(OPERATOR, "proposeOwner", OPERATOR, THIEF)
    scene.do(OPERATOR, "setOwner", OWNER)
    assert scene.refused(THIEF, "acceptOwner", OPERATOR) == "Unauthorized"
    scene.do(OWNER, "proposeOwner", OPERATOR, HEIR)
    scene.do(OWNER, "proposeOwner", OPERATOR, ZERO_ADDRESS)
    assert scene.refused(HEIR, "acceptOwner", OPERATOR) == "Unauthorized", "taken back"


def test_a_first_owner_may_be_asked_first(scene: Scene) -> None:
    scene.do(OPERATOR, "proposeOwner", OPERATOR, OWNER)
    scene.do(OPERATOR, "requestUnbond", 1)
    scene.do(OWNER, "acceptOwner", OPERATOR)
    assert scene.refused(OPERATOR, "requestUnbond", 1) == "NotOwner"


def test_an_owner_names_the_delegate_and_its_operator_cannot_take_it_back(scene: Scene) -> None:
    scene.do(OPERATOR, "setDelegate", THIEF)
    scene.do(OPERATOR, "setOwner", OWNER)
    scene.do(OWNER, "setDelegateFor", OPERATOR, HEIR)
    assert scene.refused(OPERATOR, "setDelegate", THIEF) == "NotOwner"
    assert scene.ledger.ask("StakeVault", "mayAct", OPERATOR, HEIR)
    assert scene.ledger.ask("StakeVault", "mayAct", OPERATOR, OPERATOR), "its own key still plays"


def test_stakes_bonds_and_slashes_know_no_owner(scene: Scene) -> None:
    scene.do(OPERATOR, "setOwner", OWNER)
    scene.books.deposit(OPERATOR, 5)
    scene.books.lock(OPERATOR, KEY, 50)
    scene.ledger.do("StakeVault", "slashLiveness", scene.ledger.state.at.market, KEY, 20)
    assert scene.books.free[OPERATOR] == 85
    assert scene.refused(OWNER, "requestUnbondFor", OPERATOR, 86) == "StakeTooLow"
