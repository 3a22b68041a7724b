"""Generates small Programs of forms that the planner treats specially, and near misses in a field or two.

Each form is built with random shapes; then some ops may get another opcode, register, stride, offset, extent or
operand. Every valid result must still give the right bits, whatever path the planner selects.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from lockstep.numerics.builder import Expression, Quantised, Tensor, row_major
from lockstep.protocol.programs.opcodes import ARITY, Opcode
from lockstep.protocol.programs.program import F32, I32, STOCHASTIC, Instr, Kind, Op, Tag, View
from tests.differ.case import Case, filled, finished
from tests.differ.changed import MOST, changed_op
from tests.differ.layers import ENTRIES, Layers
from tests.differ.shrink import is_valid
from tests.unit.numerics import test_fusion_random

TRIES = 8
"""Most changes of a form that are tried until it stays valid."""
LATE = (4, 20, 70, 70)
"""Numbers of ops between an early and a late reader."""


class Nearly(Layers):
    """One form, with its inputs."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.shown: list[int] = []
        """Ops that are outputs."""
        self.marks: list[int] = []
        """Ops that the planner examines closely, which are changed most often."""
        self.finished = False
        """True if the form is varied enough without changes."""

    # --- scatters ---------------------------------------------------------------------------------------------------

    def one_hot(self) -> None:
        """Builds the gradient of an embedding, with its table transposed by a copy, a map, or not at all."""
        pick = self.rng.choice
        tokens, width, rows = pick((1, 3, 8, 33, 100, 300, 300)), pick((1, 1, 4, 8, 16, 33)), pick((1, 2, 7, 40))
        parts = [t for t in (1, 2, 4, tokens) if tokens % t == 0]
        lead = pick(parts)
        index = self.indices(tokens)
        index = replace(index, shape=(lead, tokens // lead), strides=(tokens // lead, 1))
        if self.chance(0.2):
            index = replace(index, strides=(index.strides[0], pick((0, 2 if tokens < 100 else 1))))
        if self.chance(0.6):
            index = replace(index, shape=(tokens,), strides=(index.strides[-1] if lead == 1 else 1,))
        all_rows = rows + pick((0, 0, 0, 0, 2))
        shape = (all_rows, *index.shape)
        own, way = [self.b.iota(shape, 0), index.unsqueeze(0)], self.rng.randrange(48)
        if way == 0:
            own[0] = pick((self.b.iota(shape, 0, 1), self.b.iota(shape, 0, 0, 2), self.b.iota(shape, len(shape) - 1)))
        elif way == 1:
            own[1] = self.b.iota(shape, len(shape) - 1)
        elif way == 2:
            own[1] = replace(self.b.input(ENTRIES).slice(0, 0, 1), shape=shape, strides=(1, *(0,) * (len(shape) - 1)))
        elif way == 3:
            own.reverse()

        def same(e: Expression, r: int, i: int) -> None:
            a, b = {4: (i, r), 5: (r, r), 6: (i, i)}.get(way, (r, i))
            found = e.ilt(a, b) if way == 7 else e.ieq(a, b)
            e.i2f({8: r, 9: i}.get(way, found)) if way != 10 else e.fneg(found)

        if way == 11:
            flat = (all_rows * tokens,)
            ones = self.b.map(flat, [self.b.iota(flat, 0)] * 2, same, dtype=F32)
        else:
            ones = self.b.map(shape, own, same, dtype=F32)
        self.marks += [ones.index] * 3
        self.finished = self.chance(0.5)
        hot = ones.reshape(all_rows, tokens).slice(0, 0, rows)
        if all_rows > rows and self.chance(0.5):
            hot = ones.reshape(all_rows, tokens).slice(0, 1, rows + 1)
        if self.chance(0.4):  # one row again and again, all of them backwards, one token again and again
            hot = pick((
                replace(hot, strides=(0, 1)), hot.slice(0, rows - 1, rows).expand(rows, tokens),
                replace(hot, offset=hot.offset + tokens * (rows - 1), strides=(-tokens, 1)),
                replace(hot, strides=(0, 0)), replace(hot, strides=(tokens, 0)),
            ))  # fmt: skip
        if self.chance(0.1) and tokens > 1:
            tokens //= 2
            hot = hot.slice(1, 0, tokens)
        if self.chance(0.05) and rows <= tokens:  # along the columns, too
            width = max(1, min(width, tokens // rows))
            hot = replace(hot, shape=(rows, width, tokens), strides=(0, 0, 1))
            hot = replace(hot, strides=(pick((0, tokens)) if all_rows == rows else 0, 0, 1))
            self.add(self.b.dot(hot, self.leaf((width, tokens))))
            return
        table = self.like((tokens, width)).permute(1, 0)
        way = self.rng.randrange(4)
        if way == 0:
            table = self.copied(table)
        elif way == 1:
            both = [table, *(self.like((tokens, width)).permute(1, 0) for _ in range(pick((0, 1, 2))))]
            table = self.b.map(table.shape, both, self.expression(len(both)), dtype=F32)
        elif way == 2:
            table = self.leaf((width, tokens))
        if way == 1 and self.chance(0.3):
            self.add(self.b.sum(table))
        if way == 1 and self.chance(0.2):
            table = table.slice(0, 0, 1).expand(width, tokens)
        if table.strides[-1] not in (0, 1):
            table = self.copied(table)
        sides = [hot.unsqueeze(1), table.unsqueeze(0)]
        if width == 1 and self.chance(0.3):  # a stride along an axis of one
            sides[0] = replace(sides[0], strides=(sides[0].strides[0], pick((1, tokens)), sides[0].strides[2]))
        if self.chance(0.3):
            sides.reverse()
        if self.chance(0.1):
            sides = [side.unsqueeze(0) for side in sides]
        self.add(self.b.dot(sides[0], sides[1]))
        if self.chance(0.2):
            self.add(ones)

    def indices(self, count: int) -> Tensor:
        """Returns so many indices: from the state, computed, or codes of a quant."""
        way = self.rng.randrange(6)
        if way == 0:
            index = self.b.input(ENTRIES).slice(0, 5, 5 + count)
            return self.b.map((count,), [index], lambda e, i: e.iand(i, e.i32(7)), dtype=I32)
        if way == 1:
            q = self.b.quant(self.like((count, 4)), 1)
            self.add(q.scales)
            return q.codes.reshape(count)
        return self.b.input(ENTRIES).slice(0, 5, 5 + count)

    # --- quants -----------------------------------------------------------------------------------------------------

    def limbs(self) -> None:
        """Builds codes and scales with those of their residual, joined or separate, complete or partial."""
        pick = self.rng.choice
        words = pick((1, 1, 2, 4))
        rows, groups = pick(((1,), (3,), (8,), (2, 9), (3, 2, 2))), pick((1, 2, 3, 5))
        k = 4 * words * groups
        single = self.chance(0.05)
        if single:
            rows, words, groups, k = (1,), 1, 1, 4
        elif self.chance(0.15):
            k -= pick((1, 2, 3)) if self.chance(0.5) else 4 * (words - 1)
        way = self.rng.randrange(4)
        if way == 0 and len(rows) == 2:
            x = self.copied(self.like((rows[1], k, rows[0])).permute(2, 0, 1))
        elif way == 1:
            x = self.copied(self.like((k, *rows)).permute(*range(1, len(rows) + 1), 0))
        else:
            x = self.like((*rows, k))
        if x.strides[-1] != 1:
            x = self.copied(x)
        power = self.chance(0.2)
        q = self.b.quant(x, words, pick((0, STOCHASTIC)), power)
        if k % (4 * words):
            parts = [q.codes, q.scales]
        else:
            form = 4 if single else self.rng.randrange(16)
            if form == 0 and k > 1:  # the last value belongs to no group
                q = self.b.quant(x.slice(len(rows), 0, k - 1), words, 0, power)
            r = self.rest(x, q)
            if form == 1:
                self.add(self.copied(r))
            if form == 2 and rows[0] > 1:  # only of the first rows
                few = replace(q, codes=q.codes.slice(0, 0, 1), scales=q.scales.slice(0, 0, 1))
                r = self.rest(x.slice(0, 0, 1).reshape(1, *x.shape[1:]) if x.strides == row_major(x.shape) else x, few)
            if form in (3, 4, 5):
                r = self.elsewhere(x, q, form)
                self.add(r)
                if form == 4:
                    self.shown.append(r.index)
            if form == 6 and prod(rows) % 2 == 0 and r.strides == row_major(r.shape):
                r = r.reshape(prod(rows) // 2, 2 * k)
            self.marks += [r.index] * 6 if r.tag == Tag.OP else []
            parts = [q.codes, q.scales]
            if self.chance(0.1) and r.shape[0] > 1:  # of some of the rows, or reversed
                r = pick((
                    r.slice(0, 0, r.shape[0] - 1), r.slice(0, 1, r.shape[0]), backwards(r, 0),
                ))  # fmt: skip
            other = self.b.quant(
                r.reshape(*reversed(rows), k) if self.chance(0.1) and r.shape == (*rows, k) and lies(r) else r,
                pick((words, words, words, 2)),
                pick((0, STOCHASTIC + 1)), power ^ self.chance(0.1)
            )  # fmt: skip
            parts += [other.codes, other.scales]
            if self.chance(0.2) and form == 7:
                self.add(self.copied(r))
                parts = [q.codes, q.scales]
            elif self.chance(0.25):
                parts = [*parts[:2], parts[pick((2, 3))]]
                self.b.ops.pop(-1 if parts[-1] is other.codes else -2)
                if parts[-1] is other.scales:
                    parts[-1] = replace(other.scales, index=len(self.b.ops) - 1)
        for dtype in (I32, F32):
            own = [p for p in parts if p.dtype == dtype and len(p.shape) == len(rows) + 1 and p.shape[:-1] == rows]
            for _ in range(pick((0, 1, 1, 2))):
                chosen = [pick(own) for _ in range(pick((1, 2, 3, 3)))] if own else []
                if chosen and self.chance(0.1):
                    chosen.append(self.b.word(chosen[0].shape, 0, dtype))
                if chosen and self.chance(0.1):
                    chosen[0] = chosen[0].slice(len(rows), 0, max(1, chosen[0].shape[-1] - 1))
                axis = len(rows) if self.chance(0.85) else 0
                if chosen and len({(p.shape[:axis], p.shape[axis + 1 :]) for p in chosen}) == 1:
                    self.add(self.b.concat(chosen, axis))
            if self.chance(0.05) and own:  # more destinations than a pass writes to
                for _ in range(22):
                    self.add(self.b.concat([own[0]] * 3, len(rows)))

    def elsewhere(self, x: Tensor, q: Quantised, form: int) -> Tensor:
        """Builds x - codes x scales over other axes than rows, groups, words and lanes: merged, or with the values
        first.
        """
        rows, k = x.shape[:-1], x.shape[-1]

        def expression(e: Expression, v: int, code: int, up: int, scale: int) -> None:
            e.fsub(v, e.fmul(e.i2f(e.ishr(e.ishl(code, up), e.i32(24))), scale))

        if form == 4:  # of one group of one word: rank 1
            n = (4,)
            one = [replace(t, shape=n, strides=(s,)) for t, s in ((x, 1), (q.codes, 0), (q.scales, 0))]
            return self.b.map(n, [one[0], one[1], self.b.iota(n, 0, 24, -8), one[2]], expression, dtype=F32)
        shape = (k, *rows) if form == 3 else (*rows, k)
        axis = 0 if form == 3 else len(rows)
        operands = [
            x,
            q.codes.slice(len(rows), 0, 1).expand(*x.shape),
            q.scales.slice(len(rows), 0, 1).expand(*x.shape),
        ]
        operands = [t.permute(len(rows), *range(len(rows))) if form == 3 else t for t in operands]
        up = self.b.iota(shape, axis, 24, -8)
        made = self.b.map(shape, [operands[0], operands[1], up, operands[2]], expression, dtype=F32)
        return made.reshape(prod(rows), k) if form == 3 else made

    def codes_of_parts(self) -> None:
        """Builds products of codes with padded groups, of one size or several, joined or not."""
        pick = self.rng.choice
        words, rows, columns = pick((2, 4, 16)), pick((1, 3, 17)), pick((1, 2, 8))
        sizes = [pick((5, 9, 33)) for _ in range(pick((1, 2, 2, 3)))]
        if self.chance(0.6):
            sizes = [sizes[0]] * len(sizes)
        mixed, doubled = self.chance(0.15), self.chance(0.15)
        if mixed:  # as many groups, padded elsewhere
            words = 4
        sides: list[Quantised] = []
        for n in (rows, columns):
            own_sizes = ([5, 5], [pick((17, 21, 25))])[len(sides)] if mixed else sizes
            n_parts = 2 * n if doubled else n
            own = [self.b.quant(self.like((n_parts, k)), words, 0, self.chance(0.1)) for k in own_sizes]
            if doubled:  # two rows as one
                own = [
                    replace(q, codes=q.codes.reshape(n, 2 * q.codes.shape[1]), scales=q.scales.reshape(n, 2 * q.groups))
                    for q in own
                ]
            if self.chance(0.2) and n > 1:
                own[0] = replace(own[0], codes=own[0].codes.slice(0, 0, 1).expand(n, own[0].codes.shape[1]))
            if self.chance(0.1):
                own[-1] = replace(own[-1], codes=self.b.map(own[-1].codes.shape, [own[-1].codes, own[-1].codes],
                                                             lambda e, a, b: e.ior(a, b)))  # fmt: skip
            codes, scales = self.b.concat([q.codes for q in own], 1), self.b.concat([q.scales for q in own], 1)
            sides.append(replace(own[0], codes=codes, scales=scales))
        a, b = sides
        if a.groups != b.groups:
            return
        if self.chance(0.2):
            half = max(1, a.groups // 2)
            a, b = (
                replace(q, codes=q.codes.slice(1, 0, half * words), scales=q.scales.slice(1, 0, half)) for q in sides
            )
        self.add(self.b.qdot(a.unsqueeze(1), b.unsqueeze(0)))

    def codes_over_axes(self) -> None:
        """Builds a product of codes over several axes in any order: of one operand, of both, of none."""
        pick = self.rng.choice
        words, k = pick((1, 2, 4)), pick((4, 8, 24, 33))
        axes = [(pick((1, 2, 3, 5, 8)), pick(("a", "a", "b", "both", "none"))) for _ in range(pick((2, 3, 4)))]
        sides = []
        for side in ("a", "b"):
            own = [at for at, (_, role) in enumerate(axes) if role in (side, "both")]
            stored = self.rng.sample(own, len(own))
            q = self.b.quant(self.like((*(axes[at][0] for at in stored), k)), words)
            q = q.permute(*(stored.index(at) for at in own))
            for at in range(len(axes)):
                q = q if at in own else q.unsqueeze(at)
            full = tuple(extent for extent, _ in axes)
            sides.append(replace(
                q, codes=q.codes.expand(*full, q.codes.shape[-1]), scales=q.scales.expand(*full, q.groups)
            ))  # fmt: skip
        self.add(self.b.qdot(*sides))

    # --- layouts ----------------------------------------------------------------------------------------------------

    def pieces(self) -> None:
        """Builds sums over an image's channels, of a copy or product that moves them to the front."""
        pick = self.rng.choice
        images, channels, places = pick((1, 2, 2, 3, 5)), pick((2, 3, 8, 12, 33)), pick((16, 16, 32, 48, 20, 8))
        shape = (images, channels, places)
        x = [self.like(shape).permute(1, 0, 2) for _ in range(2)]
        if self.chance(0.2) and channels % 4 == 0:  # channels of groups in another order
            cut = (images, 4, channels // 4, places)
            x = [
                self.copied(self.like(cut).permute(2, 1, 0, 3)) if self.chance(0.1) else self.like(cut)
                for _ in range(2)
            ]
            x = [t if t.shape == (channels // 4, 4, images, places) else t.permute(2, 1, 0, 3) for t in x]
            made = self.b.map(x[0].shape, x, lambda e, a, b: e.fmul(a, b), dtype=F32)
            self.add(self.b.sum(made.reshape(channels, images * places)))
            return
        if self.chance(0.2):  # positions further apart than the pieces' length
            wide = [self.leaf((channels, images, places + 3)).slice(2, 0, places) for _ in range(2)]
            x = [pick((a, b)) for a, b in zip(x, wide, strict=True)]
        if self.chance(0.2):
            x[1] = self.leaf((channels, 1, 1)).expand(channels, images, places)
        if self.chance(0.2):
            x[1] = self.b.word((channels, images, places), 0x40000000, F32)
        way = self.rng.randrange(3)
        if way == 0:
            made = self.copied(x[0])
        else:
            own = pick((x, x, [x[0]]))
            made = self.b.map(x[0].shape, own, lambda e, *v: e.fmul(v[0], v[-1]), dtype=F32)
        self.marks += [made.index] * 4
        all_, k = prod(made.shape), images * places
        if self.chance(0.2):  # split elsewhere
            sizes = [n for n in range(16, all_ // 2 + 1, 16) if all_ % n == 0] or [k]
            k = pick((pick(sizes), sizes[-1]))
            self.add(self.b.sum(made.reshape(all_ // k, k)))
        elif self.chance(0.1) and channels > 8:
            self.add(self.b.sum(made.reshape(channels, k).slice(0, 0, 8)))
        elif self.chance(0.1) and k % 32 == 0:
            self.add(self.b.sum(made.reshape(channels * 2, k // 2)))
        else:
            self.add(self.b.sum(made.reshape(channels, k)))
        if self.chance(0.1):
            self.add(self.b.sum(self.b.map((1, 1 << 21), [self.b.input(0).slice(0, 0, 1)], dtype=F32)))

    def columns(self) -> None:
        """Builds a fold of a map that transposes its operand."""
        pick = self.rng.choice
        shape = [pick((1, 2, 3, 8, 17, 40)) for _ in range(pick((2, 2, 3)))]
        n = len(shape)
        order = self.rng.sample(range(n), n)
        x = [self.like(shape).permute(*order) for _ in range(pick((1, 2, 2)))]
        if self.chance(0.3):
            x.append(self.b.iota(x[0].shape, 0) if self.chance(0.5) else self.leaf((1,) * n))
        if self.chance(0.2):
            x[0] = x[0].slice(0, 0, x[0].shape[0], 2) if x[0].shape[0] > 1 else x[0]
            x = [t if t.shape == x[0].shape else self.leaf(x[0].shape) for t in x]
        made = self.b.map(x[0].shape, x, self.expression(len([t for t in x if t.dtype == F32])), dtype=F32)
        at = self.rng.randrange(n) if self.chance(0.5) else n - 1
        kept = [e for i, e in enumerate(made.shape) if i < at]
        self.add(pick((self.b.sum, self.b.max))(made.reshape(*kept, prod(made.shape[at:]))))

    def padded(self) -> None:
        """Builds an image padded along one axis after another, by concats of whole (or almost whole) tensors."""
        pick = self.rng.choice
        shape = [pick((1, 2, 3, 5)) for _ in range(pick((2, 3, 4)))]
        x = self.like(shape)
        for axis in self.rng.sample(range(len(shape)), pick((2, 2, len(shape)))):
            own = list(x.shape)
            own[axis] = pick((1, 2))
            zeros = self.b.word(own, 0, F32)
            again = x if self.chance(0.1) else zeros
            if self.chance(0.1):
                self.add(x)
            if self.chance(0.1):
                x = x.slice(axis, 0, max(1, x.shape[axis] - 1))
            if self.chance(0.1):
                flat = self.chance(0.5) and x.strides == row_major(x.shape)
                x = x.reshape(*x.shape) if flat else x.permute(*range(len(shape)))
            x = self.b.concat(pick(([zeros, x, zeros], [x, zeros], [again, x])), axis)
            if self.chance(0.15) and x.shape[-1] % 2 == 0:
                x = x.reshape(*x.shape[:-2], x.shape[-2] * 2, x.shape[-1] // 2)
        self.add(x)

    # --- time -------------------------------------------------------------------------------------------------------

    def steps(self, count: int) -> None:
        """Adds slow ops without other effect."""
        x = self.leaf((3,))
        for _ in range(count):
            x = self.b.map((3,), [x], lambda e, v: e.fneg(v))
        self.add(x)

    def waits(self) -> None:
        """Builds a tensor that is read early, and again or quantised much later."""
        pick = self.rng.choice
        n, k = pick((64, 65, 128)), pick((64, 72))
        flat = self.chance(0.4)
        shape = (n * k,) if flat else (n, k)
        x, y, small = self.copied(self.leaf(shape)), self.leaf(shape), self.leaf((1,) if flat else (n, 1))
        if self.chance(0.3):
            y = self.copied(y)
        own = [x, *pick(([], [small], [y], [y, small], [self.copied(y), small, self.copied(self.leaf(shape))]))]
        dear = self.chance(0.3)

        def expression(e: Expression, *v: int) -> None:
            found = v[0]
            for other in v[1:]:
                found = e.fadd(found, other)
            for _ in range(pick((1, 2, 4))):
                found = e.fmul(found, e.f32(0.5))
            (e.fexp if dear else e.fneg)(found)

        made = self.b.map(shape, own, expression, dtype=F32)
        if self.chance(0.4):
            made = self.b.map(shape, [made, pick((x, y))], lambda e, a, b: e.fmul(a, b), dtype=F32)
        self.add(self.b.max(made))
        if self.chance(0.4):
            self.add(self.b.max(x))
        late = pick(LATE)
        self.steps(late)
        if self.chance(0.3):
            self.add(self.b.sum(made))
            self.steps(pick(LATE))
        for _ in range(pick((1, 1, 2))):
            way = pick((0, 1, 1, 1, 2, 3, 4, 5))
            if way == 0:
                self.add(self.b.quant(made, 1).codes)
            elif way == 1:
                copy = self.b.map(shape, [made], lambda e, v: e.mov(v))
                if flat and self.chance(0.5):
                    self.add(copy)
                    continue
                self.add(self.b.quant(copy, pick((1, 4))).codes)
                if self.chance(0.3):
                    self.shown.append(copy.index)
            elif way == 5:
                self.add(self.b.quant(self.b.map(shape, [made], lambda e, v: e.fneg(v)), 1).codes)
            elif way == 2:
                q = self.b.quant(made, pick((1, 16)))
                self.add(q.codes)
                self.add(q.scales)
            elif way == 3:
                self.add(self.b.sum(self.b.map(shape, [made, x], lambda e, a, b: e.fsub(a, b), dtype=F32)))
            else:
                self.add(self.b.sum(made))
        if self.chance(0.5):
            self.add(self.b.sum(x))
        if self.chance(0.2):
            self.shown.append(made.index)

    def probabilities(self) -> None:
        """Builds attention by codes, whose probabilities are read again much later."""
        pick = self.rng.choice
        batch, heads, steps, size = pick(
            ((1, 2, 48, 4), (2, 4, 64, 4), (1, 8, 64, 8), (2, 1, 70, 300), (1, 2, 20, 300), (1, 1, 64, 4))
        )
        words = pick((1, 1, 16))
        q, k = (self.b.quant(self.like((batch, heads, steps, size)), words) for _ in range(2))
        if self.chance(0.1):
            codes = replace(self.b.input(ENTRIES).slice(0, 0, words), shape=k.codes.shape)
            k = replace(k, codes=replace(codes, strides=(0, 0, 0, 1))) if k.codes.shape[-1] == words else k
        elif self.chance(0.15):  # one head's keys for all heads
            k = replace(k, codes=k.codes.slice(1, 0, 1).slice(0, 0, 1).expand(*k.codes.shape))
        s = self.b.qdot(q.unsqueeze(3), k.unsqueeze(2))
        shape = s.shape
        s = self.b.map(shape, [s], lambda e, v: e.fmul(v, e.f32(0.1)), dtype=F32)
        for _ in range(pick((0, 0, 0, 8))):
            s = self.b.map(shape, [s], lambda e, v: e.fmul(v, v), dtype=F32)
        e = self.b.map(shape, [s, self.b.max(s).unsqueeze(3)], lambda e, a, b: e.fexp(e.fsub(a, b)), dtype=F32)
        p = self.b.map(shape, [e, self.b.sum(e).unsqueeze(3)], lambda e, a, b: e.fdiv(a, b), dtype=F32)
        if self.chance(0.15):
            p = self.b.map(shape, [p, self.leaf(shape[-1:]), s if self.chance(0.5) else e],
                           lambda e, a, b, c: e.fadd(e.fmul(a, b), c), dtype=F32)  # fmt: skip
        values = self.copied(self.like((batch, heads, size, steps)))
        first = self.b.qdot(self.b.quant(p, words).unsqueeze(3), self.b.quant(values, words).unsqueeze(2))
        self.add(first)
        if self.chance(0.15):
            self.add(pick((s, e, self.b.sum(e))))
        self.steps(pick(LATE))
        g = self.like(shape)
        ds = self.b.map(shape, [p, g], lambda e, a, b: e.fmul(a, b), dtype=F32)
        self.add(self.b.sum(ds))
        turned = self.copied(ds.permute(0, 1, 3, 2)) if self.chance(0.5) else ds
        self.add(self.b.qdot(self.b.quant(turned, words).unsqueeze(3), self.b.quant(values, words).unsqueeze(2)))
        if self.chance(0.4):  # the codes of its operands exist anyway
            self.add(self.b.qdot(q.unsqueeze(3), k.unsqueeze(2)))

    def shares(self) -> None:
        """Builds steps over batches around a product of codes: quants of rows and columns, maps, folds."""
        pick = self.rng.choice
        batch, rows, columns, k = pick((2, 3, 8, 9)), pick((1, 4, 16, 32, 70)), pick((4, 8, 16)), pick((4, 16, 32, 64))
        rows = batch if self.chance(0.1) else rows
        words = pick((1, 2, 4))
        aside = self.chance(0.2)
        if aside:  # one group of each row, or two, and rows side by side
            rows, words, k = pick((16, 32)), *pick(((2, 8), (4, 16), (2, 16)))
        a, b = self.like((batch, rows, k)), self.like((batch, columns, k))
        if aside or self.chance(0.5):
            turned = self.like((batch, k, rows))
            if aside or self.chance(0.4):  # rows of all batches adjacent
                turned = self.like((k, batch, rows)).permute(1, 0, 2)
            if self.chance(0.5):
                turned = self.b.map(turned.shape, [turned], lambda e, v: e.fabs(v))
            a = self.copied(turned.permute(0, 2, 1))
        if self.chance(0.3):
            a = self.b.map(a.shape, [a, self.like(a.shape)], self.expression(2), dtype=F32)
        if self.chance(0.3):
            m = self.b.max(a).unsqueeze(2)
            if self.chance(0.3):
                m = replace(m, offset=m.offset + rows * (batch - 1), strides=(-m.strides[0], *m.strides[1:]))
            a = self.b.map(a.shape, [a, m], self.expression(2), dtype=F32)
        if self.chance(0.2):  # rows of another batch, or some of a batch's
            a = pick((
                replace(a, offset=a.offset + a.strides[0] * (batch - 1), strides=(-a.strides[0], *a.strides[1:])),
                a.slice(0, 1, 2).expand(*a.shape), a.reshape(rows, batch, k).permute(1, 0, 2),
                replace(a, offset=a.offset + a.strides[1] * (rows - 1), strides=(a.strides[0], -a.strides[1], 1)),
            )) if a.strides == row_major(a.shape) else a  # fmt: skip
        q, p = self.b.quant(a, words), self.b.quant(b, words)
        if self.chance(0.2):
            q = replace(q, codes=q.codes.slice(0, 0, 1).expand(*q.codes.shape))
        if self.chance(0.2):
            q = replace(q, scales=q.scales.slice(0, 0, 1).expand(*q.scales.shape))
        if batch == rows and self.chance(0.5):
            q, p = q.permute(1, 0), p if self.chance(0.5) or batch != columns else p.permute(1, 0)
        y = self.b.qdot(q.unsqueeze(2), p.unsqueeze(1)) if self.chance(0.9) else self.b.qdot(q, q)
        if self.chance(0.3) and len(y.shape) == 3:
            y = self.b.map(y.shape, [y, y.slice(0, 0, 1).expand(*y.shape)], self.expression(2), dtype=F32)
        if len(y.shape) == 3 and self.chance(0.4):
            way = pick((0, 1, 2, 3, 4, 4, 4, 5))
            e, r, c = y.shape
            if way == 0:  # rows that are not batches
                self.add(self.b.max(y.reshape(e * r * c // 2, 2)) if e * r * c % 2 == 0 else self.b.max(y))
                self.add(self.b.max(y.reshape(r, e, c)) if self.chance(0.5) else self.b.max(y.reshape(e * r, c)))
            elif way == 1:  # reversed along the terms
                back = self.copied(
                    replace(y, offset=y.offset + c * (r - 1), shape=(e, c, r), strides=(y.strides[0], 1, -c))
                )
                self.add(self.b.sum(back))
            elif way == 2:
                back = replace(y, offset=y.offset + c * (r - 1), strides=(y.strides[0], -c, 1))
                self.add(self.b.map(y.shape, [y, back], lambda e, a, b: e.fsub(a, b), dtype=F32))
            elif way == 3 and c % 4 == 0:
                self.add(self.b.quant(y.permute(1, 0, 2), 1).codes)
            elif way == 4 and c % 8 == 0:  # codes or scales of other groups
                q = self.b.quant(y, 1)
                at = [pick((0, 0, 0, 1)) for _ in range(4)]
                a, b = (
                    replace(q, codes=q.codes.slice(2, m, m + c // 4 - 1), scales=q.scales.slice(2, n, n + c // 4 - 1))
                    for m, n in zip(at[:2], at[2:], strict=True)
                )
                self.add(self.b.qdot(a.unsqueeze(2), b.unsqueeze(1)))
            elif way == 5 and r % 2 == 0 and c % 4 == 0:
                q = self.b.quant(y.reshape(2 * e, r // 2, c), 1)
                self.add(self.b.qdot(q.unsqueeze(2), q.unsqueeze(1)))
        for _ in range(pick((0, 1, 2, 4))):
            y = self.b.map(y.shape, [y, self.like(y.shape) if self.chance(0.3) else y], self.expression(2), dtype=F32)
            if self.chance(0.3):
                self.steps(pick((1, 6)))
        if self.chance(0.5):
            self.add(self.b.sum(y))
        if y.shape[-1] % 4 == 0 and len(y.shape) == 3 and self.chance(0.6):
            codes = self.b.quant(y, 1)
            if self.chance(0.3):
                joined = [self.b.concat([t] * 2, 2) for t in (codes.codes, codes.scales)]
                codes = replace(codes, codes=joined[0], scales=joined[1])
            self.add(self.b.qdot(codes.unsqueeze(2), codes.unsqueeze(1)))
            if self.chance(0.3):
                self.add(codes.codes)
        self.add(y)

    # --- loops ------------------------------------------------------------------------------------------------------

    def many(self) -> None:
        """Builds maps over the same elements, with more maps, operands and instructions than one loop takes."""
        pick = self.rng.choice
        shape: tuple[int, ...] = pick(
            ((24,), (3, 8), (5, 3, 2, 2), (2, 2, 2, 2, 2, 2, 2, 2), (600,), (17, 33), (4, *(2,) * 7))
        )
        last, all_, wide = self.like(shape), [self.like(shape)], self.chance(0.2)
        leaves = [self.leaf(shape) for _ in range(5)] if wide else []
        for _ in range(pick((2, 5, 12))):
            own = [pick((last, pick(all_), self.leaf(shape))) for _ in range(pick((1, 2, 3, 6)))]
            if self.chance(0.1):
                own.append(self.b.iota(shape, len(shape) - 1))
            if self.chance(0.1):
                own.append(self.b.context(1))
            if self.chance(0.1):
                flat = last.tag == Tag.OP and last.strides == row_major(last.shape)
                own[0] = last.reshape(prod(shape)).slice(0, 0, prod(shape)).reshape(*shape) if flat else own[0]
            if self.chance(0.1):
                order = self.rng.sample(range(len(shape)), len(shape))
                own.append(
                    self.leaf([shape[i] for i in order]).permute(*sorted(range(len(shape)), key=order.__getitem__))
                )
            if wide:
                own = [last, *leaves]
            floats = [t for t in own if t.dtype == F32]
            long = 1 if wide else pick((1, 1, 1, 10))

            def expression(e: Expression, *v: int, n: int = len(floats), long: int = long) -> None:
                self.expression(n)(e, *v[:n])
                while long > 1 and len(e.instrs) < 24:
                    self.expression(1)(e, e.operands + len(e.instrs) - 1)

            last = self.b.map(shape, sorted(own, key=lambda t: t.dtype), expression, dtype=F32)
            all_.append(last)
            if self.chance(0.2):
                self.steps(pick((1, 3, 5)))
            if self.chance(0.1):
                self.add(self.b.max(last))
            if self.chance(0.1):
                last = self.b.map(
                    shape, [self.leaf((1,) * len(shape)), last], lambda e, a, b: e.ffma(a, a, b), dtype=F32
                )
            if len(shape) == 8 and not wide and self.chance(0.5):
                shape = (shape[1], shape[0], *shape[2:])
                last, all_ = last.reshape(*shape), [t.reshape(*shape) for t in all_[-1:]]
            if self.chance(0.15) and len(shape) > 1 and not wide:
                axis = self.rng.randrange(len(shape) - 1)
                shape = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
                last, all_ = last.reshape(*shape), [t.reshape(*shape) for t in all_[-1:]]
        self.add(last)

    def alike(self) -> None:
        """Builds maps of one expression, or almost, each in a loop of its own: over tensors, rows, sequences, one
        word.
        """
        self.finished = True
        pick = self.rng.choice
        seed, n, whole = self.rng.randrange(1 << 30), pick((1, 2, 3)), self.chance(0.5)
        shapes = [pick(((40,), (3, 17), (5, 40), (4, 2, 20))) for _ in range(2)]
        for _ in range(pick((3, 5))):
            shape = pick(shapes)
            axes = len(shape)
            own = [pick((
                self.leaf(shape), self.leaf(shape), self.leaf((*shape[:-1], 1)), self.leaf((1,) * axes),
            )) if not whole else self.of_state(shape) for _ in range(n)]  # fmt: skip
            integers = pick((
                self.b.iota(shape, axes - 1), self.b.iota(shape, axes - 1, 3, pick((2, -1))), self.b.iota(shape, 0),
                self.b.word(shape, 5), self.b.input(ENTRIES).slice(0, 0, shape[-1]),
            ))  # fmt: skip
            other, twice = self.chance(0.2), self.chance(0.3)

            def expression(e: Expression, *v: int, other: bool = other) -> None:
                rng, self.rng = self.rng, random.Random(seed)
                self.expression(n)(e, *v[:n])
                self.rng = rng
                last = e.operands + len(e.instrs) - 1
                (e.fsub if other else e.fadd)(last, e.i2f(v[n]))

            made = self.b.map(shape, [*own, integers], expression, dtype=F32)
            self.add(self.b.max(made))
            if twice:
                self.add(self.b.map(shape, [made, own[0]], lambda e, a, b: e.fmul(a, b), dtype=F32))
                if self.chance(0.5):
                    self.shown.append(made.index)

    def of_state(self, shape: Sequence[int]) -> Tensor:
        """Returns a part of the state."""
        n, offset = prod(shape), self.rng.randrange(9000)
        return self.b.input(self.rng.randrange(ENTRIES)).slice(0, offset, offset + n).reshape(*shape)

    # --- rows that are shared ---------------------------------------------------------------------------------------

    def rows(self) -> None:
        """Builds softmax of a product, masked or not, with readers of its rows as in attention, or almost."""
        pick = self.rng.choice
        batch, heads = pick(((1, 2), (2, 1), (2, 2), (3, 1), (2, 3), (1, 4), (1, 4)))
        clean = self.chance(0.4)
        """True: exactly as in attention, with a mask."""
        if clean and self.chance(0.3):
            steps = pick((70, 130))
        steps, columns, size = pick((2, 6, 12, 33)), pick((2, 5, 12, 40)), pick((1, 2, 5))
        if self.chance(0.08):
            batch, heads, steps, columns, size = 2, 1, *pick(((270, 280, 1), (520, 24, 2), (300, 290, 2)))
        q, v_shape = self.like((batch, heads, steps, size)), (batch, heads, columns, size)
        k = self.like((batch, pick((heads, heads, 1)), columns, size)).expand(*v_shape)
        shape: tuple[int, ...] = (batch, heads, steps, columns)
        s = self.b.dot(q.unsqueeze(3), k.unsqueeze(2))
        if self.chance(0.15) and k.strides == row_major(k.shape) and q.strides == row_major(q.shape):
            flat = [t.reshape(batch * heads, *t.shape[2:]) for t in (q, k)]
            self.b.ops.pop()
            s = self.b.dot(flat[0].unsqueeze(2), flat[1].unsqueeze(1)).reshape(*shape)
        twice = self.chance(0.1)
        other = self.b.dot(self.like(q.shape).unsqueeze(3), self.like(k.shape).unsqueeze(2)) if twice else s
        low = pick((float("-inf"), float("-inf"), -1e9, 0.0, 3.0))
        if clean or self.chance(0.7):
            s = self.masked(s, float("-inf") if clean and self.chance(0.7) else low)
        if not clean and self.chance(0.1):
            several = [self.copied(self.leaf(shape)) for _ in range(10)]
            for at in (0, 5):
                s = self.b.map(shape, [s, *several[at : at + 5]], self.expression(6), dtype=F32)
        elif not clean and self.chance(0.2):
            bias = pick((
                self.leaf((heads, 1, 1)), self.b.map((columns,), [self.leaf((columns,))], self.expression(1)),
                self.leaf((batch, 1, steps, 1)), self.copied(self.leaf(shape)),
            ))  # fmt: skip
            s = self.b.map(shape, [s, bias], lambda e, a, b: e.fadd(a, b), dtype=F32)
        if self.chance(0.06):  # the product is read, but its result unused
            s = self.b.map(shape, [s, self.leaf((steps, 1))], lambda e, a, b: e.fneg(b), dtype=F32)
        top = self.b.max(s)
        if self.chance(0.2):
            top = self.b.map(top.shape, [top, self.b.min(s)], lambda e, a, b: e.fsub(a, b), dtype=F32)
        x = self.b.map(shape, [s, top.unsqueeze(3)], lambda e, a, b: e.fexp(e.fsub(a, b)), dtype=F32)
        total = self.b.sum(x)
        p = self.b.map(shape, [x, total.unsqueeze(3)], lambda e, a, b: e.fdiv(a, b), dtype=F32)
        if twice:
            self.add(
                self.b.sum(self.b.map(shape, [other, self.b.max(other).unsqueeze(3)], self.expression(2), dtype=F32))
            )
        if self.chance(0.15):
            p = self.masked(p, pick((1.0, 0.0, float("nan"))))
        if not clean and self.chance(0.1):
            many = [self.leaf(pick((shape, (steps, 1), (columns,)))) for _ in range(5)]
            for _ in range(4):
                p = self.b.map(shape, [p, *many], self.expression(6), dtype=F32)
        for _ in range(pick((0, 1, 1, 2, 3))):
            self.reader(p, total, s, clean)
        if self.chance(0.5):
            self.backward([(p, q, k)])
        elif self.chance(0.5):  # two of them, with gradients computed side by side
            s = self.b.dot(k.unsqueeze(3), q.unsqueeze(2))
            x = self.b.map(s.shape, [s, self.b.max(s).unsqueeze(3)], lambda e, a, b: e.fexp(e.fsub(a, b)), dtype=F32)
            r = self.b.map(s.shape, [x, self.b.sum(x).unsqueeze(3)], lambda e, a, b: e.fdiv(a, b), dtype=F32)
            self.backward([(p, q, k), (r, k, q)])

    def hidden(self) -> None:
        """Builds rows that a mask cuts short, with readers that do not need the rest, as in attention and its gradient.

        The mask also applies to the gradient; hidden elements are zero, or not.
        """
        self.finished = True
        pick = self.rng.choice
        batch, heads = pick(((1, 2), (2, 1), (2, 2), (3, 1), (1, 4)))
        steps, columns, size = pick((3, 8, 17, 33, 70)), pick((2, 5, 12, 40)), pick((1, 2, 5))
        long = self.chance(0.15)
        if long:
            batch, heads, steps, columns, size = 2, 1, *pick(((270, 12, 1), (530, 7, 2), (270, 80, 1)))
        shape: tuple[int, ...] = (batch, heads, steps, columns)
        condition = (pick((0, 0, 1, 2, 4, 5, 5, 7)), pick((1, 3, columns - 1, columns, steps, steps + columns)))
        low = pick((float("-inf"), float("-inf"), -1e9, 0.0, 3.0, float("inf"), float("nan")))
        if long and self.chance(0.7):
            condition, low = (5, pick((1, 5))), pick((float("-inf"), 0.0))
        first = self.scores(shape, size)
        raw = [first, *(self.scores(shape, size) for _ in range(pick((0, 1))))]
        if self.chance(0.12):  # the product is read, its result unused, and nothing hidden
            of = [first, self.leaf((steps, 1))]
            wide = [self.b.map(shape, of, lambda e, a, b: e.fneg(b), dtype=F32)]
        else:
            wide = [self.masked(first, low, condition)]
        rows, read = [self.b.max(wide[0])], {0}
        for _ in range(pick((2, 4, 7))):
            at = len(wide) - 1 if self.chance(0.6) else self.rng.randrange(len(wide))
            x, t, way = wide[at], pick(rows[-2:]), self.rng.randrange(16)
            read.add(at)
            if way < 3:
                of = pick(
                    (lambda e, a, b: e.fexp(e.fsub(a, b)), lambda e, a, b: e.fmul(a, b), lambda e, a, b: e.fdiv(a, b))
                )
                wide.append(self.b.map(shape, [x, t.unsqueeze(3)], of, dtype=F32))
            elif way == 3:
                other = pick(
                    (self.leaf((columns,)), self.leaf((batch, heads, 1, 1)), self.leaf((columns, steps)).permute(1, 0))
                )
                wide.append(self.b.map(shape, [x, other], self.expression(2), dtype=F32))
            elif way in (4, 5):
                made = self.b.map(shape, [x, pick(raw)], lambda e, a, b: e.fmul(a, b), dtype=F32)
                wide.append(self.masked(made, pick((0.0, 0.0, 1.0, 1e30, float("inf"))), condition))
            elif way == 6:
                rows.append(pick((self.b.max, self.b.min, self.b.min))(x))
            elif way == 7:
                rows.append(self.b.sum(x))
            elif way in (8, 13, 14):
                rows.append(self.b.dot(*self.rng.sample([x, pick([*raw, *wide])], 2)))
            elif way == 15:
                wide.append(self.copied(x))
            elif way == 9:
                rows.append(self.b.map(t.shape, [t, pick(rows)], self.expression(2), dtype=F32))
            else:
                self.used_up(x)
        for at, x in enumerate(wide):
            if at not in read or self.chance(0.2):
                self.used_up(x, by_rows=None if not long else False)
        for t in rows:
            self.add(t)

    def masks(self) -> None:
        """Builds attentions with equally many rows, each with a mask of its own.

        The masks differ in a bound, in the offset and step of column numbers, or in the masked axis; one attention may
        have two masks, and read either.
        """
        pick = self.rng.choice
        both = pick((((1, 2),), ((2, 1),), ((2, 2),), ((1, 3),), ((2, 3), (3, 2)), ((2, 3), (3, 2))))
        steps, columns, size = pick((6, 17, 40)), pick((5, 12, 40)), pick((1, 2))
        window = [pick((2, 2, 2, 1, 0)), pick((0, 0, 1, -2)), pick((1, 1, 2)), pick((0, 1, 2))]
        for _ in range(pick((2, 2, 3))):
            shape: tuple[int, ...] = (*pick(both), steps, columns)
            raw = self.scores(shape, size)
            seen = [raw]
            for _ in range(pick((1, 1, 2))):
                low = pick((float("-inf"), 0.0))
                seen.append(self.masked_from(seen[-1], low, window))
                at, of = pick(((0, (0, 1, 2)), (1, (0, 1, -2)), (2, (1, 2)), *((3, (0, 1, 2, 5, columns - 1)),) * 4))
                if len(both) == 1 or self.chance(0.3):
                    window[at] = pick(of)
            top = self.b.max(pick(seen[1:]))
            e = self.b.map(shape, [seen[-1], top.unsqueeze(3)], lambda e, a, b: e.fexp(e.fsub(a, b)), dtype=F32)
            rows = self.b.sum(e)
            if self.chance(0.3):
                wide = self.b.map(shape, [raw, self.leaf((columns,))], lambda e, a, b: e.fadd(a, b), dtype=F32)
                rows = self.b.dot(*self.rng.sample([e, pick((e, raw, wide, wide))], 2))
            p = self.b.map(shape, [e, rows.unsqueeze(3)], lambda e, a, b: e.fdiv(a, b), dtype=F32)
            if self.chance(0.4):  # as a gradient is masked a second time
                p = self.b.map(shape, [p, raw], lambda e, a, b: e.fmul(a, b), dtype=F32)
                p = self.masked_from(p, 0.0, [*window[:3], pick((0, 1, 5))])
            self.used_up(p)

    def masked_from(self, s: Tensor, low: float, window: Sequence[int]) -> Tensor:
        """Returns `low` where a column's number exceeds its row's bound.

        `window`: the axis whose place, plus the bound, is the last number that stays; the first column's number; the
        step from one to the next; the bound.
        """
        axis, first, step, bound = window
        i, j = self.b.iota(s.shape, axis), self.b.iota(s.shape, 3, first, step)

        def select(e: Expression, v: int, i: int, j: int) -> None:
            e.select(e.ile(j, e.iadd(i, e.i32(bound))), v, e.f32(low))

        return self.b.map(s.shape, [s, i, j], select, dtype=F32)

    def scores(self, shape: Sequence[int], size: int) -> Tensor:
        """Returns a product of that shape; an operand may be so large that no term may be omitted, or constant
        along k.
        """
        pick, (batch, heads, steps, columns) = self.rng.choice, shape
        sides = [self.leaf((batch, heads, n, size)) for n in (steps, columns)]
        if self.chance(0.1):
            at, scale = self.rng.randrange(2), pick((1e20, 1e30))
            sides[at] = self.b.map(sides[at].shape, [sides[at]], lambda e, v: e.fmul(v, e.f32(scale)))
        if self.chance(0.1):
            at = self.rng.randrange(2)
            sides[at] = sides[at].slice(3, 0, 1).expand(*sides[at].shape)
        q, k = sides
        return self.b.dot(*self.rng.sample([q.unsqueeze(3), k.unsqueeze(2)], 2))

    def used_up(self, x: Tensor, by_rows: bool | None = None) -> None:
        """Adds a product by rows or by columns of a wide tensor, whose other operand may be constant along k."""
        batch, heads, steps, columns = x.shape
        width, alike = self.rng.choice((1, 2, 7)), self.chance(0.15)
        by_rows = self.chance(0.5) if by_rows is None else by_rows
        k = columns if by_rows else steps
        v = self.leaf((batch, heads, width, 1 if alike else k)).expand(batch, heads, width, k)
        sides = [(x if by_rows else self.turned(x)).unsqueeze(3), v.unsqueeze(2)]
        if self.chance(0.2):
            sides = [side.permute(0, 1, 3, 2, 4) for side in sides]
        self.add(self.b.dot(*self.rng.sample(sides, 2)))

    def turned(self, x: Tensor) -> Tensor:
        """Exchanges the last two axes by a copy."""
        return self.copied(x.permute(*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2))

    def like(self, shape: Sequence[int]) -> Tensor:
        """Returns a tensor of a shape, contiguous along its last axis, by a copy if necessary."""
        x = super().like(shape)
        return x if not x.shape or x.strides[-1] in (0, 1) else self.copied(x)

    def masked(self, s: Tensor, low: float, condition: tuple[int, int] | None = None) -> Tensor:
        """Selects one of several values by a condition on row and column; the condition and its number may be given."""
        pick, (rows, columns) = self.rng.choice, s.shape[-2:]
        i, j = self.b.iota(s.shape, len(s.shape) - 2), self.b.iota(s.shape, len(s.shape) - 1)
        kind, n = condition or (self.rng.randrange(9), pick((1, rows, columns, rows + columns)))
        operands = [s, i, j]
        if kind == 3:
            tokens = self.b.input(ENTRIES).slice(0, 0, rows)
            operands.append(replace(tokens, shape=(rows, 1), strides=(1, 0)))
        if kind == 8:
            operands.append(self.leaf(s.shape))

        def select(e: Expression, v: int, i: int, j: int, more: int = 0) -> None:
            kept = {
                1: lambda: e.ilt(e.iadd(i, j), e.i32(n)),
                2: lambda: e.ieq(e.irem(j, e.i32(3)), e.i32(0)),
                3: lambda: e.ilt(j, more),
                4: lambda: e.select(e.ilt(i, e.i32(2)), e.ile(j, i), e.ilt(j, e.i32(n))),
                5: lambda: e.ilt(j, e.i32(n)),
            }.get(kind, lambda: e.ile(j, i))()
            if kind == 6:
                e.select(kept, v, e.i2f(j))
            elif kind == 7:
                e.select(kept, e.f32(low), v)
            elif kind == 8:
                e.select(kept, v, more)
            else:
                e.select(kept, v, e.f32(low))

        return self.b.map(s.shape, operands, select, dtype=F32)

    def reader(self, p: Tensor, total: Tensor, s: Tensor, clean: bool = False) -> None:
        """Adds one reader of a wide tensor: a product that uses all of it, a fold of its rows, or a near miss."""
        pick, (batch, heads, steps, columns) = self.rng.choice, p.shape
        width, wide = pick((1, 2, 7)), pick((p, p, p, s))
        lead = pick(((batch, heads), (batch, heads), (1, 1)))
        v = self.leaf((*lead, width, columns)).expand(batch, heads, width, columns)
        g = self.leaf((*lead, width, steps)).expand(batch, heads, width, steps)
        flat = wide.strides == row_major(wide.shape)
        way = pick((0, 2, 3, 5, 6, 7, 9, 21, 22, 23)) if clean else self.rng.randrange(27)
        wide = p if clean else wide
        if way in (0, 1):
            self.add(self.b.dot(wide.unsqueeze(3), v.unsqueeze(2)))
        elif way == 2:
            self.add(self.b.dot(v.unsqueeze(3), wide.unsqueeze(2)))
        elif way in (3, 4):
            self.add(self.b.dot(self.turned(wide).unsqueeze(3), g.unsqueeze(2)))
        elif way == 5:
            self.add(self.b.dot(g.unsqueeze(3), self.turned(wide).unsqueeze(2)))
        elif way == 6:  # two axes of its own
            two = self.leaf((2, 3, columns))
            self.add(self.b.dot(wide.unsqueeze(3).unsqueeze(3), two))
        elif way == 7 and flat:  # batches as one
            own = self.leaf((width, columns))
            self.add(self.b.dot(wide.reshape(batch * heads, steps, 1, columns), own))
        elif way == 8:
            self.add(self.b.dot(wide.slice(pick((0, 1)), 0, 1).unsqueeze(3), self.leaf((width, columns))))
        elif way == 9:
            ones, apart = self.b.word(p.shape, 0x3F000000, F32), self.copied(self.leaf(p.shape))
            one_row, one_column = p.slice(2, steps - 1, steps).expand(*p.shape), p.slice(3, 0, 1).expand(*p.shape)
            others = (ones, apart, total.unsqueeze(3).expand(*p.shape), self.leaf(p.shape), s, one_row, one_column)
            self.add(self.b.dot(wide, pick(others)))
        elif way == 10 and columns > 2:
            self.add(self.b.sum(wide.slice(3, 0, columns - 1)))
        elif way == 11 and flat and steps % 2 == 0:
            self.add(self.b.sum(wide.reshape(batch, heads, 2, steps // 2, columns)))
        elif way == 12:
            column = wide.slice(3, 0, 1)
            self.add(self.b.map(total.shape, [replace(column, shape=total.shape, strides=column.strides[:3]), total],
                                self.expression(2), dtype=F32))  # fmt: skip
        elif way == 13:
            self.add(self.b.dot(total.unsqueeze(2), self.leaf((width, steps))))
        elif way == 14:
            least = min(steps, columns)
            diagonal = replace(wide, shape=(batch, heads, least), strides=(*wide.strides[:2], columns + 1))
            v = replace(self.leaf((least, width)), shape=(least, width, 1), strides=(width, 1, 0))
            self.add(self.b.dot(replace(diagonal, shape=(*diagonal.shape, 1, 1), strides=(*diagonal.strides, 0, 0)), v))
        elif way == 15 and flat:
            groups = self.b.quant(self.leaf((batch, heads, 4 * steps)), 1)
            self.add(self.b.qdot(replace(groups, scales=total), groups))
        elif way == 16:
            self.add(self.b.concat([wide, self.b.word(wide.shape, 0, F32)], pick((0, 2, 3))))
        elif way == 17 and flat:
            self.add(
                self.b.dot(wide.reshape(batch * heads * steps * columns), wide.reshape(batch * heads * steps * columns))
            )
        elif way == 18:
            self.add(self.b.sum(wide.slice(2, 0, max(1, steps - 1))))
        elif way == 19:  # an offset, and as many outputs
            moved = wide.slice(2, steps - 1, steps).expand(*wide.shape)
            self.add(self.b.dot(moved.unsqueeze(3), v.unsqueeze(2)))
        elif way == 20 and flat:  # rows as columns
            x = wide.reshape(batch, heads, columns, steps)
            self.add(self.b.map(x.shape, [x, self.leaf(x.shape)], self.expression(2), dtype=F32))
        elif way == 24 and flat and batch > 1:  # more rows than a batch has
            x = replace(wide, shape=(heads, steps + 1, columns), strides=(steps * columns, columns, 1))
            self.add(self.b.dot(x.unsqueeze(2), self.leaf((width, columns))))
        elif way == 26 and flat and batch * heads > 1:  # columns beyond a row's
            x = replace(wide, shape=(2 * columns, steps), strides=(1, columns))
            self.add(self.b.dot(self.copied(x).unsqueeze(1), self.leaf((width, steps)).unsqueeze(0)))
        elif way == 21:
            order = (0, 1, 3, 2, 4)
            self.add(self.b.dot(wide.unsqueeze(3).permute(*order), v.unsqueeze(2).permute(*order)))
        elif way == 22:
            order = (0, 1, 3, 2, 4)
            x = self.turned(wide).unsqueeze(3)
            self.add(self.b.dot(x.permute(*order), g.unsqueeze(2).permute(*order)))
        else:
            self.add((self.b.sum, self.b.min, self.b.max)[way % 3](wide))

    def backward(self, of: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
        """Builds the gradients of `rows`, step by step, with recomputed probabilities."""
        pick = self.rng.choice
        made = [self.gradient(p, q, k) for p, q, k in of]
        both = [
            self.b.map(p.shape, [gp, p], lambda e, a, b: e.fmul(a, b), dtype=F32)
            for (p, *_), gp in zip(of, made, strict=True)
        ]
        inner = [
            self.b.dot(gp, p) if self.chance(0.3) else self.b.sum(x)
            for (p, *_), gp, x in zip(of, made, both, strict=True)
        ]
        for (p, q, k), gp, x, t in zip(of, made, both, inner, strict=True):
            gs = self.b.map(p.shape, [x, p, t.unsqueeze(3)], lambda e, a, b, c: e.fsub(a, e.fmul(b, c)), dtype=F32)
            for wide, other in ((gs, k), (self.turned(gs), q)):
                turned = self.like((*other.shape[:2], other.shape[3], other.shape[2]))
                self.add(self.b.dot(wide.unsqueeze(3), turned.unsqueeze(2)))
            if self.chance(0.2):
                self.reader(gs, t, gp)
            if self.chance(0.1):
                self.add(pick((self.b.max, self.b.sum))(p))

    def gradient(self, p: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Returns the first tensor of the gradient: a product of p's shape, over the same axes or others, or no
        product.
        """
        pick, shape = self.rng.choice, p.shape
        g, v = self.like(q.shape), self.like(k.shape)
        lies = g.strides == row_major(g.shape) and v.strides == row_major(v.shape)
        if self.chance(0.3) and lies:
            flat = pick(((shape[0] * shape[1],), (2, shape[0] * shape[1] // 2)))
            if prod(flat) == shape[0] * shape[1]:
                g, v = (t.reshape(*flat, *t.shape[2:]) for t in (g, v))
                n = len(flat) + 1
                return self.b.dot(g.unsqueeze(n), v.unsqueeze(n - 1)).reshape(*shape)
        if self.chance(0.25):
            way = self.rng.randrange(5)
            if way == 0:
                return self.b.concat([self.leaf((1, *shape[1:])) for _ in range(shape[0])], 0)
            if way == 1:
                return self.b.max(self.leaf((*shape, 2)))
            if way == 2:
                return self.b.dot(self.leaf((*shape, 2)), self.leaf((*shape, 2)))
            if way == 3:
                return self.copied(self.leaf(shape))
            return self.b.dot(g.slice(0, 0, 1).unsqueeze(3), v.slice(0, 0, 1).unsqueeze(2)).expand(*shape)
        return self.b.dot(g.unsqueeze(3), v.unsqueeze(2))

    # --- views ------------------------------------------------------------------------------------------------------

    def far(self) -> None:
        """Builds folds and products of copies read reversed, with steps, across their axes, or split elsewhere."""
        pick = self.rng.choice
        a, b, c = pick((2, 3, 4)), pick((2, 4, 6)), pick((1, 3, 4, 16))
        copy = self.copied(self.like((c, b, a)).permute(*self.rng.sample(range(3), 3)))
        n = a * b * c
        if self.chance(0.3):
            copy = self.copied(self.flipped(copy.reshape(n)).permute(0))
            n = copy.shape[0]
        rows = pick([r for r in range(1, 9) if n // r >= 1])
        k = pick([x for x in (1, 2, 3, 4, 5, 8) if x <= n // rows])
        flat = replace(copy, shape=(n,), strides=(1,))
        step = pick((k, k, 1)) if (rows - 1) * k + k <= n else 1
        x = replace(flat, shape=(rows, k), strides=(step, 1))
        if self.chance(0.4):
            x = replace(x, offset=x.offset + step * (rows - 1), strides=(-step, 1))
        if self.chance(0.4):
            self.add(self.b.sum(x))
            return
        y = self.like((pick((2, 4, 8)), k))
        self.add(
            self.b.dot(x.unsqueeze(1), y.unsqueeze(0))
            if self.chance(0.5)
            else self.b.dot(y.unsqueeze(1), x.unsqueeze(0))
        )

    def overlapping(self) -> None:
        """Builds products of windows that a copy lays out, read in that layout or another, forwards or backwards."""
        pick = self.rng.choice
        images, places, taps, inner = pick((1, 2, 3)), pick((2, 4, 6)), pick((1, 2, 3)), pick((1, 2, 4))
        x = self.like((images, inner, places + taps - 1))
        seen = replace(
            x, shape=(images, places, inner, taps), strides=(x.strides[0], x.strides[2], x.strides[1], x.strides[2])
        )
        if self.chance(0.2):
            seen = replace(
                seen, offset=seen.offset + seen.strides[3] * (taps - 1), strides=(*seen.strides[:3], -seen.strides[3])
            )
        k = inner * taps
        if self.chance(0.25):  # laid out with the positions innermost, and copied once more
            first = self.copied(seen.permute(0, 2, 3, 1)).reshape(images, k, places)
            back = self.chance(0.5)
            turned = replace(
                first, offset=first.offset + back * (k - 1) * places, shape=(images, places, k),
                strides=(first.strides[0], 1, -places if back else places),
            )  # fmt: skip
            w = self.like((pick((2, 8)), k))
            self.add(self.b.dot(w.unsqueeze(0).unsqueeze(2), self.copied(turned).unsqueeze(1)))
            return
        copy = self.copied(seen)
        if self.chance(0.2) and places % 2 == 0 and k > 1:  # rows that are not windows
            copy = copy.reshape(images, places // 2, 2 * k)
        elif self.chance(0.2) and k % 2 == 0:
            copy = copy.reshape(images, places * 2, k // 2)
        else:
            copy = copy.reshape(images, places, k)
        if self.chance(0.2):
            turned = replace(copy, offset=copy.offset + copy.shape[2] - 1, strides=(*copy.strides[:2], -1))
            copy = self.copied(turned)
        if self.chance(0.2):
            copy = replace(
                copy, offset=copy.offset + copy.strides[0] * (images - 1), strides=(-copy.strides[0], *copy.strides[1:])
            )
        if self.chance(0.2):
            m = copy.shape[1]
            copy = replace(
                copy, offset=copy.offset + copy.strides[1] * (m - 1), strides=(copy.strides[0], -copy.strides[1], 1)
            )
        w = self.like((pick((2, 8, 16)), copy.shape[2]))
        sides = [w.unsqueeze(0).unsqueeze(2), copy.unsqueeze(1)]
        if self.chance(0.3):
            sides.reverse()
        if self.chance(0.2):
            sides = [side.permute(0, 2, 1, 3) for side in sides]
        self.add(self.b.dot(sides[0], sides[1]))

    def long(self) -> None:
        """Builds folds with more terms than two levels of partials hold, and rows with more axes than a quant has."""
        way = self.rng.choice((0, 1, 2, 2, 2, 3, 4, 4, 4))
        if way == 0:
            x = self.b.input(0).slice(0, 0, 1)
            a = replace(x, shape=(2, 66_000), strides=(0, 0))
            b = self.b.map((2, 66_000), [self.b.iota((2, 66_000), 1)], lambda e, v: e.i2f(v), dtype=F32)
            self.add(self.b.dot(a.unsqueeze(1), b.unsqueeze(0)))
        elif way == 1:
            q = replace(self.b.input(0).slice(0, 0, 4), shape=(2, 2, 1), strides=(2, 1, 1))
            k = replace(self.b.input(1).slice(0, 0, 1), shape=(2, 66_000, 1), strides=(1, 0, 1))
            s = self.b.dot(q.unsqueeze(2), replace(k, strides=(0, 0, 1)).unsqueeze(1))
            k = self.b.map((2, 66_000, 1), [self.b.iota((2, 66_000, 1), 1)], lambda e, v: e.i2f(v), dtype=F32)
            s = self.b.dot(q.unsqueeze(2), k.unsqueeze(1))
            e = self.b.map(s.shape, [s, self.b.max(s).unsqueeze(2)], lambda e, a, b: e.fexp(e.fsub(a, b)), dtype=F32)
            ones = self.b.word((2, 1, 2, 66_000), 0x3F000000, F32)
            pair = replace(self.b.input(2).slice(0, 0, 2), shape=ones.shape, strides=(0, 0, 1, 0))
            self.add(self.b.dot(e.unsqueeze(2), ones if self.chance(0.3) else pair))
        elif way in (2, 3):
            copy = self.copied(self.like((4, 2, 2, 2, 2, 2, 2, 4)).permute(0, 2, 1, 3, 4, 5, 6, 7))
            x = replace(copy, shape=(2, 128, 4), strides=(512, 4, 1))
            self.add(self.b.quant(x, 1).codes)
            column = self.copied(self.like((12, 5)).slice(1, 0, 1)).reshape(12)
            self.add(self.b.quant(column, self.rng.choice((1, 2))).codes)
        else:
            m, n = self.rng.choice(((2, 3), (3, 2), (4, 7)))
            rows = self.copied(self.like((n, m, 8)))
            sides = self.b.quant(rows, 1).permute(1, 0)
            other = self.b.quant(self.like((4, 8)), 1)
            self.add(self.b.qdot(sides.unsqueeze(2), other))

    # --- the whole --------------------------------------------------------------------------------------------------

    def case(self, name: str, seed: int) -> Case | None:
        forms: list[tuple[Callable[[], object], float]] = [
            (self.one_hot, 10), (self.limbs, 12), (self.codes_of_parts, 3), (self.codes_over_axes, 2), (self.pieces, 5),
            (self.columns, 2), (self.padded, 2), (self.waits, 7), (self.probabilities, 5), (self.shares, 9),
            (self.many, 4), (self.alike, 1), (self.rows, 14), (self.hidden, 9), (self.far, 3), (self.overlapping, 4),
            (self.long, 3), (self.attention, 1), (self.convolution, 2),
        ]  # fmt: skip
        if self.chance(0.12):
            program, _ = test_fusion_random.graph(self.rng.randrange(1 << 20))
            ops, inputs, consts = list(program.ops), program.inputs, program.consts
        else:
            self.rng.choices([f for f, _ in forms], [weight for _, weight in forms])[0]()
            if not self.b.ops:
                return None
            ops, inputs, consts = list(self.b.ops), self.b.finish([]).inputs, tuple(self.b.consts)
        shown = [*self.shown, *(t.index for t in self.pool if t.tag == Tag.OP and self.chance(0.1))]
        shown += [self.rng.randrange(len(ops))] if self.chance(0.15) else []
        for _ in range(TRIES):
            changed = self.varied(ops)
            if any(op.header.elements * max(1, op.k_terms) > MOST for op in changed):
                continue
            program = finished(changed, inputs, consts, shown)
            if is_valid(program):
                return filled(name, program, seed)
        return None

    def varied(self, given: Sequence[Op]) -> list[Op]:
        """Returns the ops with up to two changed fields."""
        ops = list(given)
        if self.finished and self.chance(0.7):
            return ops
        if self.marks and self.chance(0.6):
            i = self.rng.choice(self.marks)
            ops[i] = self.missed(ops, i) if self.chance(0.8) else ops[i]
            return ops
        for _ in range(self.rng.choice((0, 1, 1, 1, 2))):
            i = self.rng.choice([*self.marks, *range(len(ops)), len(ops) - 1])
            ops[i] = changed_op(ops[i], i, self.rng) if self.chance(0.4) else self.other(ops[i], i)
        return ops

    def missed(self, ops: Sequence[Op], i: int) -> Op:
        """Returns the op with one changed field, all equally likely: opcode, register, immediate, source, offset, a
        stride.
        """
        op, rng = ops[i], self.rng
        fields: list[tuple[str, int, int]] = []
        for at, instr in enumerate(op.instrs):
            fields += [("imm" if instr.op == Opcode.IMM else "opcode", at, 0)]
            fields += [("register", at, k) for k in range(0 if instr.op == Opcode.IMM else ARITY[Opcode(instr.op)])]
        for at in range(len(op.views)):
            fields += [("source", at, 0)] * 3 + [("offset", at, 0)]
            fields += [("stride", at, axis) for axis, extent in enumerate(op.extents) if extent > 1]
        what, at, k = rng.choice(fields)
        if what in ("imm", "opcode", "register"):
            old = op.instrs[at]
            if what == "imm":
                new = replace(old, imm=rng.choice((0, 8, 16, 25)))
            elif what == "opcode":
                alike = [o for o in Opcode if o not in (old.op, Opcode.IMM) and ARITY[o] == ARITY[Opcode(old.op)]]
                new = replace(old, op=rng.choice(alike))
            else:
                name = "abc"[k]
                others = [r for r in range(len(op.views) + at) if r != getattr(old, name)]
                new = replace(old, **{name: rng.choice(others)}) if others else old
            return replace(op, instrs=(*op.instrs[:at], new, *op.instrs[at + 1 :]))
        view = op.views[at]
        strides = list(view.strides)
        if what == "source":
            same = [v for o in ops[max(0, i - 4) : i + 1] for v in o.views if v.index < i or v.tag != Tag.OP]
            chosen = rng.choice([*same, View(Tag.IOTA, 0, 0, ()), View(Tag.OP, rng.randrange(max(1, i)), 0, ())])
            view = replace(view, tag=chosen.tag, index=chosen.index)
        elif what == "offset":
            # Inside of its source, as repeated along an axis.
            axis = rng.choice([a for a, extent in enumerate(op.extents) if extent > 1] or [0])
            apart = strides[axis] if strides else 0
            if strides and apart and self.chance(0.7):
                strides[axis] = 0
            view = replace(view, offset=view.offset + rng.choice((1, -1, apart, 8)), strides=tuple(strides))
        else:
            s, e = strides[k], op.extents[k]
            way = rng.randrange(4)
            strides[k] = (0, -s, 1, rng.choice(strides))[way]
            view = replace(view, offset=view.offset + (s * (e - 1) if way == 1 else 0), strides=tuple(strides))
        return replace(op, views=(*op.views[:at], view, *op.views[at + 1 :]))

    def other(self, op: Op, i: int) -> Op:
        """Returns the op with one change that keeps it valid more often than not."""
        rng = self.rng
        if op.instrs and self.chance(0.5):
            at = rng.randrange(len(op.instrs))
            old = op.instrs[at]
            registers = len(op.views) + at
            if old.op == Opcode.IMM:
                new = replace(old, imm=rng.choice((0, 8, 16, 0x3F800000)))
            elif self.chance(0.5):
                alike = [o for o in Opcode if ARITY[o] == ARITY[Opcode(old.op)] and o != Opcode.IMM]
                new = replace(old, op=rng.choice(alike))
            elif self.chance(0.4):
                new = replace(old, a=old.b, b=old.a) if ARITY[Opcode(old.op)] == 2 else replace(old, a=0)
            else:
                fields = ("a", "b", "c")[: ARITY[Opcode(old.op)]]
                new = replace(old, **{rng.choice(fields): rng.randrange(registers)}) if registers else old
            if self.chance(0.1):
                return replace(op, instrs=(*op.instrs, Instr(Opcode.MOV, registers)))
            return replace(op, instrs=(*op.instrs[:at], new, *op.instrs[at + 1 :]))
        if not op.views:
            return op
        at = rng.randrange(len(op.views))
        view = op.views[at]
        axes = [a for a, e in enumerate(op.extents) if e > 1]
        strides = list(view.strides)
        if axes and self.chance(0.6):
            axis = rng.choice(axes)
            e, s = op.extents[axis], strides[axis]
            roll = rng.random()
            if roll < 0.35:  # reversed
                strides[axis] = -s
                view = replace(view, offset=view.offset + s * (e - 1))
            elif roll < 0.7:
                strides[axis] = 0
            elif len(axes) > 1:
                b = rng.choice([a for a in axes if a != axis])
                strides[axis], strides[b] = strides[b], strides[axis]
            view = replace(view, strides=tuple(strides))
        elif self.chance(0.5):
            same = [v for v in op.views if v.tag == Tag.OP and v.index < i] + [View(Tag.STATE, 0, 0, ())]
            chosen = rng.choice(same)
            view = replace(view, tag=chosen.tag, index=chosen.index)
        elif op.kind == Kind.MAP:
            view = replace(view, tag=Tag.IOTA, index=0) if self.chance(0.5) else replace(view, offset=view.offset + 1)
        else:
            view = replace(view, offset=max(0, view.offset - 1))
        return replace(op, views=(*op.views[:at], view, *op.views[at + 1 :]))


def lies(x: Tensor) -> bool:
    """Returns True if the tensor's elements are contiguous."""
    return x.strides == row_major(x.shape)


def backwards(x: Tensor, axis: int) -> Tensor:
    """Returns the tensor reversed along an axis."""
    strides = (*x.strides[:axis], -x.strides[axis], *x.strides[axis + 1 :])
    return replace(x, offset=x.offset + x.strides[axis] * (x.shape[axis] - 1), strides=strides)


def make(seed: int, name: str) -> Case | None:
    """Returns the case of a seed."""
    return Nearly(seed).case(name, seed)


def make_alike(seed: int, name: str) -> Case:
    """Returns the case of a seed with similar loops."""
    return _of(Nearly.alike, seed, name)


def make_windows(seed: int, name: str) -> Case:
    """Returns the case of a seed with similar masks."""
    return _of(Nearly.masks, seed, name)


def _of(form: Callable[[Nearly], None], seed: int, name: str) -> Case:
    maker = Nearly(seed)
    form(maker)
    shown = [*maker.shown, *(t.index for t in maker.pool if maker.chance(0.1))]
    return filled(name, finished(list(maker.b.ops), maker.b.finish([]).inputs, tuple(maker.b.consts), shown), seed)


__all__ = ["Nearly", "Tensor", "make", "make_alike", "make_windows"]
