"""What every part stands on: bytes from outside decoded, settings, what this machine has, arrays kept at hand."""
