"""The market as pure functions (State, Block, Call) -> (State, events). Twin of the contracts around JobMarket.sol."""
