"""The commitment guard (slashing protection): prevents two different claims for one slot after crashes, double starts
and copies.

lock.py          one home, one process
memory.py        what the home has signed, on disk before it is signed (after EIP-3076)
doppelganger.py  a home that cannot know what its key signed listens before it signs
interchange.py   the memory as a file, to move a key to another machine
"""
