"""Tracing: turns a torch function into a Program, the committed list of tensor operations."""

from lockstep.tracing.sources import context, draw, random_words
from lockstep.tracing.trace import trace

__all__ = ["context", "draw", "random_words", "trace"]
