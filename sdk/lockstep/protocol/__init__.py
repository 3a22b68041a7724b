"""The protocol, pure: types, hashing, traces, the rules of the game and of the rounds."""
