"""The dispute game: rules, moves, openings and honest play; twin of contracts/DisputeGame.sol."""
