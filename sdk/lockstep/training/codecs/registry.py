"""Codecs by name. A new one is a module here, a line below, and a row of tests/battery/test_codecs.py."""

from __future__ import annotations

from lockstep.training.codecs.base import Codec
from lockstep.training.codecs.dct import DCT
from lockstep.training.codecs.e3m0 import E3M0
from lockstep.training.codecs.exact import Exact
from lockstep.training.codecs.float16 import Float16
from lockstep.training.codecs.int8 import Int8
from lockstep.training.codecs.random_k import RandomK
from lockstep.training.codecs.sign import Sign
from lockstep.training.codecs.topk import TopK
from lockstep.training.codecs.uniform import Uniform

CODECS: dict[str, type[Codec]] = {
    "exact": Exact,
    "float16": Float16,
    "int8": Int8,
    "uniform": Uniform,
    "e3m0": E3M0,
    "sign": Sign,
    "topk": TopK,
    "random_k": RandomK,
    "dct": DCT,
}
