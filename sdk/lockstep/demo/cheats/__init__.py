"""Parties that lie, for devnets alone: each is an honest program with one part of it replaced.

    python -m lockstep.demo.cheats NAME SEED worker up ...      an honest `lockstep worker up ...` that lies once

The demo's liars and the tests' are these. Nothing of the honest programs knows them: no setting, file or argument of
theirs changes what is claimed.
"""
