"""The court: what contracts/DisputeGame.sol stores and pays around the rules of a game."""
