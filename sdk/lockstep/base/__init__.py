"""The ground of every part: bytes from outside decoded, settings, this machine's resources, arrays kept at hand."""
