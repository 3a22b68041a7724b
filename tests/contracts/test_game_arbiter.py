"""The Arbiter under brownie: the vectors that the Python reference wrote, bit by bit."""

import json
from pathlib import Path

import brownie
import pytest

VECTORS = json.loads((Path(__file__).parent.parent / "vectors/arbiter.json").read_text())


@pytest.fixture(scope="module")
def arbiter(Arbiter, accounts):
    return Arbiter.deploy({"from": accounts[0]})


def test_every_kind_is_in_the_vectors():
    kinds = {v["kind"] for v in VECTORS["execute"]}
    assert kinds == {"map", "fold", "gather", "concat", "random", "draw", "quant"}


def test_execute_gives_the_words_of_the_vectors(arbiter):
    wrong = [n for n, v in enumerate(VECTORS["execute"]) if arbiter.execute(*v["arguments"]) != v["word"]]
    assert wrong == []


def test_combine_gives_the_words_of_the_vectors(arbiter):
    wrong = [v["mode"] for v in VECTORS["combine"] if arbiter.combine(v["mode"], v["words"]) != v["word"]]
    assert wrong == []


def test_more_openings_than_are_read_revert(arbiter):
    vector = next(v for v in VECTORS["execute"] if v["kind"] == "draw")
    *rest, openings, staged = vector["arguments"]
    with brownie.reverts():
        arbiter.execute(*rest, openings + openings, staged)


def test_another_word_in_a_leaf_reverts(arbiter):
    vector = next(v for v in VECTORS["execute"] if v["kind"] == "draw")
    *rest, ((header, data, *proofs),), staged = vector["arguments"]
    spoiled = data[:-2] + ("00" if data[-2:] != "00" else "01")
    with brownie.reverts():
        arbiter.execute(*rest, [(header, spoiled, *proofs)], staged)
