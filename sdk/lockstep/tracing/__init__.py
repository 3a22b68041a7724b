"""Torch function to Program."""

from lockstep.tracing.sources import context, draw, random_words
from lockstep.tracing.trace import trace

__all__ = ["context", "draw", "random_words", "trace"]
