// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {DisputeGame} from "../../contracts/DisputeGame.sol";
import {StakeVault} from "../../contracts/StakeVault.sol";
import {GamePhase, LengthWrong, Verdict} from "../../contracts/interfaces/IDisputeGame.sol";
import {Refund} from "../../contracts/interfaces/IStakeVault.sol";
import {ClaimId, GameId} from "../../contracts/types/Ids.sol";
import {GamesTable} from "./GamesTable.sol";
import {Letters} from "./Letters.sol";

/// @title GamesTest
/// @notice Random games, up to three at once on a claim, each to its end: the honest side wins, the money adds up.
/// @dev `make test-games` plays 10,000 and more of them; here a run is one claim.
contract GamesTest {
    uint256 private constant TOO_LONG = 400;

    /// @dev A true claim, honestly defended, against anybody.
    function testFuzz_honest_defender_wins_every_game(uint256 luck) external {
        GamesTable table = new GamesTable();
        Letters.Claim memory c = Letters.Claim(uint32(luck), Letters.Lie.None, 0, 0, 0);
        table.market().setGasPrice(luck % 3);
        table.claims(c, GamesTable.Actor.Honest, luck);
        _open(table, 1 + table.dice(3), false);
        _play(table);
        for (uint256 i = 0; i < _games(table); i++) {
            require(_verdict(table, i) == Verdict.Rejected, "an honest defender lost");
        }
        uint256 due = table.DEPOSIT() - table.STAKE() + _games(table) * (uint256(table.BOND()) * 60 / 100);
        require(_worth(table, table.WORKER()) == due, "its deposit and its part of every bond");
    }

    /// @dev A false claim, an honest challenger among others.
    function testFuzz_honest_challenger_convicts(uint256 luck) external {
        GamesTable table = new GamesTable();
        table.market().setGasPrice(luck % 3);
        table.claims(_lie(luck), GamesTable.Actor(1 + luck % (table.ACTORS() - 1)), luck);
        if (table.isTrue()) return;
        _open(table, 1 + table.dice(3), true);
        _play(table);
        require(table.vault().lockOf(ClaimId.unwrap(table.CLAIM())).amount == 0, "not convicted");
        require(2 * table.vault().credits(table.BURN()) >= table.STAKE(), "half of the stake is burned");
        for (uint256 i = 0; i < _games(table); i++) {
            if (_actor(table, i) != GamesTable.Actor.Honest) continue;
            require(_verdict(table, i) != Verdict.Rejected, "an honest challenger lost");
            require(_worth(table, table.account(i)) >= table.DEPOSIT(), "an honest challenger paid");
        }
    }

    /// @dev Nobody honest: only the money and the clocks are asked about.
    function testFuzz_games_among_the_dishonest_end(uint256 luck) external {
        GamesTable table = new GamesTable();
        table.claims(_lie(luck), GamesTable.Actor(1 + luck % (table.ACTORS() - 1)), luck);
        _open(table, 1 + table.dice(3), false);
        _play(table);
    }

    /// @dev One lie of each kind, in each place, is convicted by its own proof.
    function test_each_lie_is_convicted() external {
        for (uint256 lie = 1; lie < Letters.LIES; lie++) {
            for (uint32 at = 1; at <= Letters.T; at += 7) {
                GamesTable table = new GamesTable();
                table.claims(Letters.Claim(0x61, Letters.Lie(lie), at, 7, 1), GamesTable.Actor.Liar, lie);
                // What S_t does not show is opened where it is.
                table.open(GamesTable.Actor.Honest, at);
                _play(table);
                bool unanswerable = lie == uint256(Letters.Lie.Unopenable) || lie == uint256(Letters.Lie.Forged);
                require(table.market().convictedAt() == (unanswerable ? 0 : at), "the step that was proved wrong");
                Verdict due = unanswerable ? Verdict.Timeout : Verdict.Fraud;
                require(_verdict(table, 0) == due, "another verdict");
            }
        }
    }

    /// @dev Four on one lie: the first to prove has half of the prize, the two earliest others a quarter each, the fourth nothing.
    function test_the_prize_is_shared_two_one_one_and_gas_is_given_back() external {
        for (uint256 price = 0; price < 3; price++) {
            GamesTable table = new GamesTable();
            table.market().setGasPrice(price == 2 ? 1e9 : price);
            table.claims(Letters.Claim(0x61, Letters.Lie.Letter, 3, 7, 0), GamesTable.Actor.Liar, 1);
            for (uint256 i = 0; i < 4; i++) table.open(i == 2 ? GamesTable.Actor.Honest : GamesTable.Actor.Silent, 3);
            (GameId first,,,,,) = table.seats(0);
            uint256 spent = table.game().game(first).spent;
            require(spent > 21_000, "gas is metered");
            _play(table);

            uint256 prize = uint256(table.STAKE()) * 30 / 100;
            uint256 refundable = uint256(table.STAKE()) * 10 / 100;
            uint256[4] memory got = [prize / 4, prize / 4, prize / 2, 0];
            // The convicting game's gas is more than the share that refunds are paid from.
            if (price > 0) got[2] += refundable;
            for (uint256 i = 0; i < 4; i++) require(table.vault().credits(table.account(i)) == got[i], "another share");
            uint256 requester = uint256(table.STAKE()) * 20 / 100 - (price > 0 ? refundable : 0);
            require(table.vault().credits(table.market().REQUESTER()) == requester, "the requester's part");
        }
    }

    /// @dev What others spent is given back in the order of their games.
    function test_refunds_are_paid_in_order() external {
        GamesTable table = new GamesTable();
        table.claims(Letters.Claim(0x61, Letters.Lie.Letter, 3, 7, 0), GamesTable.Actor.Silent, 1);
        for (uint256 i = 0; i < 4; i++) table.open(GamesTable.Actor.Silent, 3);
        uint256[4] memory spent;
        for (uint256 i = 0; i < 4; i++) {
            (GameId id,,,,,) = table.seats(i);
            spent[i] = table.game().game(id).spent;
        }
        uint256 left = uint256(table.STAKE()) * 10 / 100;
        require(left < spent[0] + spent[1] + spent[2] + spent[3], "not enough for all");
        table.market().setGasPrice(1);
        _play(table);
        uint256 prize = uint256(table.STAKE()) * 30 / 100;
        uint256[4] memory shares = [prize / 2, prize / 4, prize / 4, 0];
        for (uint256 i = 0; i < 4; i++) {
            uint256 refund = spent[i] < left ? spent[i] : left;
            left -= refund;
            require(table.vault().credits(table.account(i)) == shares[i] + refund, "another refund");
        }
        require(table.market().convictedAt() == 0, "a missed deadline proves no step wrong");
    }

    /// @dev Ten on one lie, and the tenth proves it: a verdict looks at the eight earliest others, and asks for the gas of each of them.
    function test_eight_other_games_have_their_gas_back() external {
        GamesTable table = new GamesTable();
        table.claims(Letters.Claim(0x61, Letters.Lie.Letter, 3, 7, 0), GamesTable.Actor.Liar, 1);
        uint256[10] memory spent;
        for (uint256 i = 0; i < 10; i++) {
            table.open(i == 9 ? GamesTable.Actor.Honest : GamesTable.Actor.Silent, 3);
            (GameId id,,,,,) = table.seats(i);
            spent[i] = table.game().game(id).spent;
        }
        _play(table);
        Refund[] memory asked = table.market().asked();
        require(asked.length == 9, "another number of games");
        require(asked[0].account == table.account(9) && asked[0].amount > spent[9] + 21_000, "who proves is the first");
        for (uint256 i = 0; i < 8; i++) {
            require(asked[1 + i].account == table.account(i) && asked[1 + i].amount == spent[i], "then the others in order");
        }
        uint256 prize = uint256(table.STAKE()) * 30 / 100;
        for (uint256 i = 0; i < 10; i++) {
            uint256 share = i == 9 ? prize / 2 : i < 2 ? prize / 4 : 0;
            require(table.vault().credits(table.account(i)) == share, "another share");
        }
    }

    /// @dev A fold of three chunks: the fourth was never claimed.
    function test_a_chunk_that_was_not_posted_is_not_proved() external {
        GamesTable table = new GamesTable();
        table.claims(Letters.Claim(0x61, Letters.Lie.Chunk, 3, 7, 1), GamesTable.Actor.Liar, 1);
        table.open(GamesTable.Actor.Honest, 3);
        (GameId id,,,,,) = table.seats(0);
        while (table.phaseOf(id) != GamePhase.Proof) require(table.turn(0), "on to the proof");
        (bool done, bytes memory answer) = table.chunkBeyond(0, 3);
        bytes memory due = abi.encodeWithSelector(LengthWrong.selector, Letters.CHUNKS, Letters.CHUNKS);
        require(!done && keccak256(answer) == keccak256(due), "refused, with the number of chunks and the one asked for");
    }

    function _lie(uint256 luck) private pure returns (Letters.Claim memory) {
        luck = uint256(keccak256(abi.encode("lie", luck)));
        Letters.Lie lie = Letters.Lie(1 + luck % (Letters.LIES - 1));
        uint32 at = 1 + uint32(luck >> 32) % Letters.T;
        return Letters.Claim(uint32(luck >> 64), lie, at, 1 | uint32(luck >> 96), uint32((luck >> 128) % Letters.CHUNKS));
    }

    /// @dev Dishonest challengers, an honest one among them if there is to be one.
    function _open(GamesTable table, uint256 count, bool honest) private {
        uint256 place = honest ? table.dice(count) : count;
        (, Letters.Lie lie, uint32 at,,) = table.held();
        for (uint256 i = 0; i < count; i++) {
            GamesTable.Actor actor = i == place ? GamesTable.Actor.Honest : GamesTable.Actor(1 + table.dice(table.ACTORS() - 1));
            uint32 anywhere = uint32(table.dice(Letters.T + 1));
            bool knows = i == place && anywhere != 0 && lie != Letters.Lie.None;
            table.open(actor, knows ? at : i == place ? 0 : anywhere);
        }
    }

    function _play(GamesTable table) private {
        uint256 count = _games(table);
        for (uint256 turns = 0; !table.isOver(); turns++) {
            require(turns < TOO_LONG, "games that do not end");
            bool moved = false;
            for (uint256 i = 0; i < count; i++) moved = table.turn(i) || moved;
            if (!moved) table.pass();
            table.checkMoney();
            table.checkGames();
        }
    }

    function _games(GamesTable table) private view returns (uint256 count) {
        while (true) {
            try table.seats(count) {
                count++;
            } catch {
                return count;
            }
        }
    }

    function _verdict(GamesTable table, uint256 i) private view returns (Verdict) {
        (GameId id,,,,,) = table.seats(i);
        return table.game().game(id).verdict;
    }

    function _actor(GamesTable table, uint256 i) private view returns (GamesTable.Actor actor) {
        (, actor,,,,) = table.seats(i);
    }

    function _worth(GamesTable table, address who) private view returns (uint256) {
        return table.vault().free(who) + table.vault().credits(who);
    }
}
