"""Lying parties, for devnets only: each is an honest program with one part replaced.

    python -m lockstep.demo.cheats NAME SEED worker up ...      an honest `lockstep worker up ...` that lies once

The demo and the tests use these liars. The honest programs do not refer to them: no setting, file or argument of an
honest program changes what it claims.
"""
