"""Generates random Programs in the tracer's forms (layers, their gradients and an update) without torch.

A product uses any axes of its operands as batch, rows or terms; if their layout does not suit a fold, a copy transposes
them first. An axis may be read as overlapping windows: two axes, positions and taps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from lockstep.numerics.builder import Expression, ProgramBuilder, Quantised, Tensor, row_major
from lockstep.protocol.programs.program import F32, I32, STOCHASTIC, Alias, Tag
from lockstep.protocol.programs.rules import MAX_AXES
from tests.differ.case import Case, filled, finished

WORDS = 1 << 14
"""Length of each float state tensor."""
ENTRIES = 3
MOST = 1 << 15
"""Most elements of a tensor."""
MOST_TERMS = 1 << 19
"""Most multiplications of a product; one in ten products has up to four times as many, shared by threads."""
EXTENTS = (1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 8, 9, 12, 15, 16, 17, 24, 32, 33)
TERMS = (1, 2, 16, 64, 100, 128, 144, 255, 256, 257, 300, 512, 513, 600)


@dataclass(frozen=True)
class Axis:
    """One axis of a view of a tensor, and its role in a product."""

    extent: int
    stride: int
    role: str
    """Role: batch, row or term."""
    name: int
    """Number of the axis, equal in both operands if they share it."""


class Layers:
    """A Program under construction: the available tensors, and methods that add ops."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.b = ProgramBuilder([(F32, WORDS)] * ENTRIES + [(I32, 512), (F32, None)])
        self.pool: list[Tensor] = []
        self.most = MOST_TERMS * (4 if self.rng.random() < 0.1 else 1)
        self.streams = 0
        self.integers = self.rng.random() < 0.3
        """True if most products are products of codes."""

    # --- what is read -----------------------------------------------------------------------------------------------

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def leaf(self, shape: Sequence[int]) -> Tensor:
        """Returns a parameter, directly from the state or after a map."""
        n = prod(shape)
        if n > WORDS:
            row = self.leaf(shape[1:]) if n > shape[0] else self.leaf((1,))
            return self.b.map(shape, [row, self.b.iota(shape, 0)], lambda e, v, i: e.fadd(v, e.i2f(i)), dtype=F32)
        offset = self.rng.choice((0, 0, self.rng.randrange(WORDS - n + 1)))
        x = self.b.input(self.rng.randrange(ENTRIES)).slice(0, offset, offset + n)
        x = replace(x, shape=tuple(shape), strides=row_major(shape))
        if self.chance(0.5):
            return x
        if self.chance(0.3):
            return self.b.map(shape, [x])
        word = self.b.word((), self.rng.choice((0x3F000000, 0xBF800000, 0)), F32)
        return self.b.map(shape, [x, word], lambda e, v, w: self.rng.choice((e.fadd, e.fmax))(v, w), dtype=F32)

    def any(self) -> Tensor:
        """Returns an available tensor, most often a recent one."""
        if not self.pool or self.chance(0.15):
            self.add(self.fresh())
        return self.rng.choice(self.pool[-3:] if self.chance(0.7) else self.pool)

    def fresh(self) -> Tensor:
        rank = self.rng.choice((1, 2, 2, 3, 3, 4, 4))
        shape: list[int] = []
        for _ in range(rank):
            room = 6000 // prod(shape)
            shape.append(min(room, self.rng.choice(EXTENTS)))
        if self.chance(0.4):  # the product has many terms
            at = self.rng.randrange(rank)
            shape[at] = max(1, min(12000 // (prod(shape) // shape[at]), self.rng.choice(TERMS)))
        return self.leaf(shape)

    def like(self, shape: Sequence[int]) -> Tensor:
        """Returns a tensor of the given shape, an available or a new one."""
        found = [t for t in self.pool if t.shape == tuple(shape)]
        return self.rng.choice(found) if found and self.chance(0.7) else self.leaf(shape)

    def add(self, tensor: Tensor) -> Tensor:
        self.pool.append(tensor)
        return tensor

    def copied(self, x: Tensor) -> Tensor:
        """Copies a view to a tensor of its own."""
        return self.b.map(x.shape, [x])

    # --- products ---------------------------------------------------------------------------------------------------

    def cut(self, x: Tensor) -> list[tuple[int, int]]:
        """Returns (extent, stride) of a view's axes, some of them split, read as windows, reversed, or partial."""
        axes: list[tuple[int, int]] = []
        for extent, stride in zip(x.shape, x.strides, strict=True):
            roll = self.rng.random()
            if roll < 0.2 and extent >= 3 and len(axes) < 4:
                taps, dilation, step = (
                    self.rng.choice((1, 2, 2, 3, 3, 5)),
                    self.rng.choice((1, 1, 1, 2)),
                    self.rng.choice((1, 1, 1, 2, 3)),
                )
                places = (extent - 1 - (taps - 1) * dilation) // step + 1
                if places >= 1:
                    axes += [(places, stride * step), (taps, stride * dilation)]
                    continue
            divisors = [d for d in range(2, extent) if extent % d == 0]
            if roll < 0.3 and divisors and len(axes) < 4:
                inner = self.rng.choice(divisors)
                axes += [(extent // inner, stride * inner), (inner, stride)]
            else:
                axes.append((extent, stride))
        return axes

    def flipped(self, x: Tensor) -> Tensor:
        """Returns the tensor with some axes reversed or partial."""
        offset, strides, shape = x.offset, list(x.strides), list(x.shape)
        for axis, extent in enumerate(shape):
            roll = self.rng.random()
            if roll < 0.12 and extent > 1:
                offset += strides[axis] * (extent - 1)
                strides[axis] = -strides[axis]
            elif roll < 0.2 and extent > 2:
                shape[axis] = self.rng.randrange(1, extent)
                offset += strides[axis] * self.rng.randrange(extent - shape[axis] + 1)
        return replace(x, offset=offset, shape=tuple(shape), strides=tuple(strides))

    def product(self) -> None:
        """Adds a sum of products over some axes of two tensors, with copies where the layout requires them."""
        a = self.any()
        if self.chance(0.25):
            a = self.flipped(a)
        left = [
            Axis(e, s, self.rng.choice(("row", "row", "term", "term", "batch")), i)
            for i, (e, s) in enumerate(self.cut(a))
        ]
        if all(axis.role != "term" for axis in left):
            at = self.rng.randrange(len(left)) if left else -1
            left = [replace(axis, role="term") if i == at else axis for i, axis in enumerate(left)]
        if not left:
            return
        terms, batch = [x for x in left if x.role == "term"], [x for x in left if x.role == "batch"]
        shared = [x for x in batch if self.chance(0.7)]
        columns = [self.rng.choice(EXTENTS) for _ in range(self.rng.choice((1, 1, 1, 2)))]
        most = self.most // max(1, prod(x.extent for x in left))
        while prod(columns) > most or prod(columns) * prod(x.extent for x in (*terms, *shared)) > 12000:
            if prod(columns) == 1:
                return
            columns[columns.index(max(columns))] //= 2
        own = [Axis(e, 0, "row", 100 + i) for i, e in enumerate(columns)]
        axes = [*shared, *own, *terms]
        if len(axes) > MAX_AXES:
            return
        self.rng.shuffle(axes)
        b = self.like([x.extent for x in axes])
        right = [replace(x, stride=s) for x, s in zip(axes, b.strides, strict=True)]
        # Windows of the second operand have the same form as the first's: the axis is longer than the part that is
        # read.
        if self.chance(0.15) and len(axes) >= 2:
            right, b = self.windows(axes)
        order = [*batch, *(x for x in left if x.role == "row"), *own]
        if self.chance(0.4):
            self.rng.shuffle(order)
        if self.chance(0.3):
            order = [*own, *(x for x in order if x not in own)]
        if len(order) + 1 > 7 or len(order) + len(terms) > 8:
            return
        if self.chance(0.2):
            self.rng.shuffle(terms)
        quantised = self.chance(0.7 if self.integers else 0.05)
        sides = []
        for tensor, side in ((a, left), (b, right)):
            of = {axis.name: axis for axis in side}
            mine = [of[x.name] for x in order if x.name in of]
            sides.append((self.operand(tensor, mine, [of[x.name] for x in terms], quantised), mine))
        if self.chance(0.2):
            sides.reverse()
        if quantised:
            self.codes(order, sides)
            return
        extents = [x.extent for x in order]
        full = [self.spread(x, mine, order) for x, mine in sides]
        if self.chance(0.3) and (merged := self.merged(extents, full)):
            extents, full = merged
        result = self.b.dot(*full)
        if self.chance(0.3):
            result = replace(result, shape=tuple(extents), strides=row_major(extents))
        self.add(result)

    def convolution(self) -> None:
        """Adds a convolution of an image, perhaps padded, with its gradients by weight and image."""
        pick = self.rng.choice
        batch, inputs, outputs = (
            pick((1, 1, 2, 3, 5)),
            pick((1, 2, 3, 4, 8)),
            pick((1, 3, 4, 6, 7, 8, 12, 15, 16, 24, 32)),
        )
        kernel, step, dilation = pick((1, 2, 3, 3, 3, 5)), pick((1, 1, 1, 2)), pick((1, 1, 1, 2))
        high, wide = pick((1, 2, 3, 4, 6, 8, 12)), pick((2, 3, 4, 4, 6, 8, 9, 12, 16))
        sides = [(n - 1) * step + (kernel - 1) * dilation + 1 for n in (high, wide)]
        if batch * inputs * prod(sides) > 12000 or batch * outputs * inputs * high * wide * kernel**2 > self.most:
            return
        x, w = self.like((batch, inputs, *sides)), self.like((outputs, inputs, kernel, kernel))
        if self.chance(0.5) and min(sides) > 2:
            inner = self.like((batch, inputs, sides[0] - 2, sides[1] - 2))
            for axis in (2, 3):
                edge = [*inner.shape]
                edge[axis] = 1
                zeros = self.b.word(edge, 0, F32)
                inner = self.b.concat([zeros, inner, zeros], axis)
            x = inner
        b, c, h, v = x.strides
        seen = replace(
            x,
            shape=(batch, high, wide, inputs, kernel, kernel),
            strides=(b, h * step, v * step, c, h * dilation, v * dilation),
        )
        k, places = inputs * kernel**2, high * wide
        windows = self.copied(seen).reshape(batch, places, k)
        y = self.b.dot(w.reshape(1, outputs, 1, k), windows.unsqueeze(1)) if w.strides == row_major(w.shape) else None
        if y is None:
            return
        self.add(y)
        if self.chance(0.5):
            # Gradient of the weight: the terms are images and positions.
            g = self.copied(y.permute(1, 0, 2)).reshape(outputs, batch * places)
            turned = self.copied(seen.permute(3, 4, 5, 0, 1, 2)).reshape(k, batch * places)
            self.add(self.b.dot(g.unsqueeze(1), turned.unsqueeze(0)))
        if self.chance(0.3) and step == 1 and dilation == 1:
            # Gradient of the image: the reversed weight over windows of the padded gradient.
            last = kernel - 1
            g = y.reshape(batch, outputs, high, wide)
            for axis in (2, 3) if last else ():
                edge = [*g.shape]
                edge[axis] = last
                zeros = self.b.word(edge, 0, F32)
                g = self.b.concat([zeros, g, zeros], axis)
            o, i, r, s = w.strides
            back = replace(
                w, offset=w.offset + last * (r + s), shape=(inputs, outputs, kernel, kernel), strides=(i, o, -r, -s)
            )
            b, c, h, v = g.strides
            seen = replace(g, shape=(batch, *sides, outputs, kernel, kernel), strides=(b, h, v, c, h, v))
            if prod(seen.shape) <= 2 * MOST:
                windows = self.copied(seen).reshape(batch, prod(sides), outputs * kernel**2)
                self.add(self.b.dot(self.copied(back).reshape(1, inputs, 1, outputs * kernel**2), windows.unsqueeze(1)))

    def attention(self) -> None:
        """Adds softmax attention in the tracer's form: scores, mask, probabilities, values; perhaps a gradient."""
        pick = self.rng.choice
        batch, heads, steps, size = (
            pick((1, 1, 2, 3)),
            pick((1, 2, 3, 4)),
            pick((2, 3, 7, 16, 17, 33, 70, 130)),
            pick((2, 3, 4, 8)),
        )
        codes = self.chance(0.5 if self.integers else 0.1)
        if codes and self.chance(0.3):  # enough batches, and words in each, for processing batches one by one
            batch, heads, steps, size = pick(((2, 4, 64, 4), (1, 8, 70, 4), (3, 3, 65, 8)))
        elif batch * heads * steps * max(size, steps) > MOST:
            return
        packed = (
            self.like((batch, steps, heads, size))
            if self.chance(0.6)
            else self.like((batch, heads, steps, size)).permute(0, 2, 1, 3)
        )
        q = packed.permute(0, 2, 1, 3)
        k, v = (self.like((batch, steps, heads, size)).permute(0, 2, 1, 3) for _ in range(2))
        if self.chance(0.2):  # heads that share keys
            k, v = (t.slice(1, 0, 1).expand(batch, heads, steps, size) for t in (k, v))
        shape = (batch, heads, steps, steps)
        words = pick((1, 2, 16))
        if codes:
            a, b = (self.b.quant(t if t.strides[-1] == 1 else self.copied(t), words) for t in (q, k))
            scores = self.b.qdot(a.unsqueeze(3), b.unsqueeze(2))
        else:
            scores = self.b.dot(q.unsqueeze(3), k.unsqueeze(2))
        rows, columns = self.b.iota(shape, 2), self.b.iota(shape, 3)
        masked, low, near = self.chance(0.7), pick((float("-inf"), float("-inf"), -1e9, 0.0)), self.chance(0.3)

        def expression(e: Expression, s: int, row: int, column: int) -> None:
            s = e.fmul(s, e.f32(0.5))
            kept = e.ile(column, row)
            if near:
                kept = e.iand(kept, e.ilt(row, e.iadd(column, e.i32(3))))
            if masked:
                e.select(kept, s, e.f32(low))
            else:
                e.fmul(s, e.f32(0.25))

        scores = self.b.map(shape, [scores, rows, columns], expression, dtype=F32)
        top = self.b.max(scores).unsqueeze(3)
        e = self.b.map(shape, [scores, top], lambda e, s, m: e.fexp(e.fsub(s, m)), dtype=F32)
        p = self.b.map(shape, [e, self.b.sum(e).unsqueeze(3)], lambda e, x, t: e.fdiv(x, t), dtype=F32)
        turned = self.copied(v.permute(0, 1, 3, 2))
        if codes and self.chance(0.7):
            if self.chance(0.2):  # batches in another order than computed
                p, turned = (
                    replace(
                        t,
                        offset=t.offset + t.strides[1] * (heads - 1),
                        strides=(t.strides[0], -t.strides[1], *t.strides[2:]),
                    )
                    for t in (p, turned)
                )
            probabilities, values = self.b.quant(p, words), self.b.quant(turned, words)
            y = self.add(self.b.qdot(probabilities.unsqueeze(3), values.unsqueeze(2)))
        else:
            y = self.add(self.b.dot(p.unsqueeze(3), turned.unsqueeze(2)))
        if self.chance(0.5):
            self.add(self.copied(y.permute(0, 2, 1, 3)))
        if self.chance(0.5):
            g = self.like(y.shape)
            gp = self.b.dot(g.unsqueeze(3), v.unsqueeze(2)) if v.strides[-1] == 1 else None
            if gp is None:
                return
            self.add(
                self.b.dot(
                    self.copied(p.permute(0, 1, 3, 2)).unsqueeze(3), self.copied(g.permute(0, 1, 3, 2)).unsqueeze(2)
                )
            )
            both = self.b.map(shape, [gp, p], lambda e, a, b: e.fmul(a, b), dtype=F32)
            gs = self.b.map(
                shape, [both, p, self.b.sum(both).unsqueeze(3)], lambda e, a, b, c: e.fsub(a, e.fmul(b, c)), dtype=F32
            )
            self.add(self.b.dot(gs.unsqueeze(3), self.copied(k.permute(0, 1, 3, 2)).unsqueeze(2)))
            self.add(
                self.b.dot(
                    self.copied(gs.permute(0, 1, 3, 2)).unsqueeze(3), self.copied(q.permute(0, 1, 3, 2)).unsqueeze(2)
                )
            )

    def shared(self) -> None:
        """Adds a product with enough rows and terms to be shared by several threads."""
        rows, columns, k = (
            self.rng.choice((120, 200, 301)),
            self.rng.choice((17, 40, 96)),
            self.rng.choice((64, 130, 260)),
        )
        a, b = (
            self.like((rows, k)),
            self.like((columns, k)) if self.chance(0.5) else self.leaf((k, columns)).permute(1, 0),
        )
        if b.strides[-1] != 1:
            b = self.copied(b)
        self.add(self.b.dot(a.unsqueeze(1), b.unsqueeze(0)))

    def windows(self, axes: list[Axis]) -> tuple[list[Axis], Tensor]:
        """Returns a second operand of which two axes overlap in one axis of a tensor."""
        at = self.rng.randrange(len(axes) - 1)
        step, dilation = self.rng.choice((1, 1, 2)), self.rng.choice((1, 1, 2))
        places, taps = axes[at], axes[at + 1]
        extent = (places.extent - 1) * step + (taps.extent - 1) * dilation + 1
        shape = [*(x.extent for x in axes[:at]), extent, *(x.extent for x in axes[at + 2 :])]
        if prod(shape) > 12000:
            shape = [x.extent for x in axes]
            b = self.like(shape)
            return [replace(x, stride=s) for x, s in zip(axes, b.strides, strict=True)], b
        b = self.like(shape)
        strides = [*b.strides[:at], b.strides[at] * step, b.strides[at] * dilation, *b.strides[at + 1 :]]
        return [replace(x, stride=s) for x, s in zip(axes, strides, strict=True)], b

    def operand(self, tensor: Tensor, rows: list[Axis], terms: list[Axis], quantised: bool) -> Tensor:
        """Returns [rows..., K] of a tensor, by a copy unless its terms are contiguous."""
        k = prod(x.extent for x in terms)
        stride, lies = 1, True
        for x in reversed([x for x in terms if x.extent > 1]):
            lies &= x.stride == stride
            stride *= x.extent
        shape = tuple(x.extent for x in rows)
        if lies and self.chance(0.9):
            return replace(tensor, shape=(*shape, k), strides=(*(x.stride for x in rows), 1))
        axes = [*rows, *terms]
        view = replace(tensor, shape=tuple(x.extent for x in axes), strides=tuple(x.stride for x in axes))
        reach = view.offset + sum(max(0, s) * (e - 1) for s, e in zip(view.strides, view.shape, strict=True))
        if view.tag == Tag.STATE and reach + 1 < WORDS and len(view.shape) < 8 and self.chance(0.2):
            # Part of a copy: reading starts after its first element.
            both = replace(view, shape=(2, *view.shape), strides=(1, *view.strides))
            whole = self.copied(both).reshape(2, prod(shape) * k).slice(0, 1, 2)
            return replace(whole, shape=(*shape, k), strides=row_major((*shape, k)))
        if self.chance(0.15):  # the transposing map computes something
            copy = self.b.map(view.shape, [view], lambda e, v: self.rng.choice((e.fneg, e.fabs))(v))
        elif self.chance(0.1):
            copy = self.b.map(view.shape, [view], lambda e, v: e.mov(v))
        else:
            copy = self.b.map(view.shape, [view])
        if self.chance(0.1):
            self.add(copy)
        return copy.reshape(*shape, k)

    def spread(self, x: Tensor, mine: list[Axis], order: list[Axis]) -> Tensor:
        """Expands the operand over all axes of the output."""
        strides = {axis.name: stride for axis, stride in zip(mine, x.strides, strict=False)}
        return replace(
            x,
            shape=(*(axis.extent for axis in order), x.shape[-1]),
            strides=(*(strides.get(axis.name, 0) for axis in order), x.strides[-1]),
        )

    def merged(self, extents: list[int], full: list[Tensor]) -> tuple[list[int], list[Tensor]] | None:
        """Merges two neighbouring axes of a product where both operands' strides allow it."""
        for at in range(len(extents) - 1):
            if all(t.strides[at] == t.strides[at + 1] * extents[at + 1] for t in full):
                whole = [*extents[:at], extents[at] * extents[at + 1], *extents[at + 2 :]]
                joined = [
                    replace(t, shape=(*whole, t.shape[-1]), strides=(*t.strides[:at], *t.strides[at + 1 :]))
                    for t in full
                ]
                return whole, joined
        return None

    def codes(self, order: list[Axis], sides: list[tuple[Tensor, list[Axis]]]) -> None:
        """Adds the product as one of codes, with one limb or two."""
        words, power, limbs = self.rng.choice((1, 2, 4, 8, 16, 64, 64)), self.chance(0.1), self.chance(0.4)
        found = []
        for x, mine in sides:
            if x.strides[-1] != 1:
                x = self.copied(x)
            found.append((self.quantised(x, words, power, limbs), mine))
        pairs = ((0, 0), (0, 1), (1, 0)) if limbs else ((0, 0),)
        joined = []
        for side, (parts, mine) in enumerate(found):
            own = [parts[pair[side] % len(parts)] for pair in pairs]
            if len(own) > 1:
                axis = len(own[0].codes.shape) - 1
                codes = self.b.concat([p.codes for p in own], axis)
                own = [Quantised(codes, self.b.concat([p.scales for p in own], axis), words)]
            joined.append(replace(
                own[0], codes=self.spread(own[0].codes, mine, order), scales=self.spread(own[0].scales, mine, order)
            ))  # fmt: skip
        self.add(self.b.qdot(*joined))

    def quantised(self, x: Tensor, words: int, power: bool, limbs: bool) -> list[Quantised]:
        stream = 0
        if self.chance(0.4):
            stream, self.streams = STOCHASTIC + self.streams, self.streams + 1
        high = self.b.quant(x, words, 0 if limbs else stream, power)
        if not limbs:
            return [high]
        if x.shape[-1] % (4 * words) or len(x.shape) + 2 > 8:
            shape = x.shape
            padding = -x.shape[-1] % (4 * words)
            if not padding or len(x.shape) + 2 > 8:
                return [high, high]
            zeros = self.b.word((*shape[:-1], padding), 0, F32)
            x = self.b.concat([x, zeros], len(shape) - 1)
            high = self.b.quant(x, words, 0, power)
        return [high, self.b.quant(self.rest(x, high), words, stream, power)]

    def rest(self, x: Tensor, q: Quantised) -> Tensor:
        """Adds x - codes x scales in the tracer's form; K is a whole number of groups."""
        if self.chance(0.15):  # of another tensor: not a second limb, although it has the form of one
            x = self.like(x.shape)
        lead = x.shape[:-1]
        shape = (*lead, q.groups, q.words, 4)
        cut = replace(x, shape=shape, strides=(*x.strides[:-1], 4 * q.words, 4, 1))
        lanes = q.codes.reshape(*shape[:-1]).unsqueeze(len(shape) - 1).expand(*shape)
        scales = q.scales.unsqueeze(len(lead) + 1).unsqueeze(len(lead) + 2).expand(*shape)
        up = self.b.iota((4,), 0, 24, -8).expand(*shape)

        def expression(e: Expression, v: int, code: int, up: int, scale: int) -> None:
            e.fsub(v, e.fmul(e.i2f(e.ishr(e.ishl(code, up), e.i32(24))), scale))

        if prod(shape) > 2 * MOST:
            return x
        flat = self.b.map(shape, [cut, lanes, up, scales], expression, dtype=F32)
        return flat.reshape(*x.shape)

    # --- maps, folds, joins -----------------------------------------------------------------------------------------

    def expression(self, operands: int) -> Callable[..., None]:
        """Returns a short expression over so many registers, as in layers and optimizers."""
        rng = self.rng

        def build(e: Expression, *registers: int) -> None:
            value = registers[0]
            for other in registers[1:]:
                value = rng.choice((e.fadd, e.fmul, e.fsub, e.fmax, e.fadd, e.fmul))(value, other)
            for _ in range(rng.choice((0, 0, 1, 2, 4))):
                roll = rng.random()
                if roll < 0.3:
                    value = rng.choice((e.fexp, e.ftanh, e.fneg, e.fabs, e.fsqrt))(value)
                elif roll < 0.5:
                    value = e.select(
                        e.flt(value, rng.choice(registers)), e.f32(rng.choice((0.0, 1.0, float("-inf")))), value
                    )
                elif roll < 0.8:
                    value = rng.choice((e.fadd, e.fmul, e.fdiv, e.fmin))(value, e.f32(rng.choice((0.5, 2.0, 1e-8))))
                else:
                    value = e.ffma(value, rng.choice(registers), rng.choice(registers))
            if value == registers[0]:
                e.fadd(value, value)

        return build

    def pointwise(self) -> None:
        """Adds a map of a tensor with others, broadcast or whole."""
        x = self.any()
        if self.chance(0.15):
            x = self.flipped(x)
        if self.chance(0.25):
            x = x.permute(*self.rng.sample(range(len(x.shape)), len(x.shape)))
        operands = [x]
        for _ in range(self.rng.choice((0, 0, 1, 1, 2, 3))):
            whole = [t for t in self.pool if t.shape == x.shape]
            if whole and self.chance(0.6):
                operands.append(self.rng.choice(whole))
            else:
                shape = [e if self.chance(0.4) else 1 for e in x.shape]
                operands.append(self.leaf(shape))
        self.add(self.b.map(x.shape, operands, self.expression(len(operands)), dtype=F32))

    def mask(self) -> None:
        """Adds a causal, windowed or random mask over the last two axes."""
        x = self.any()
        if len(x.shape) < 2:
            return
        n = len(x.shape)
        rows, columns = self.b.iota(x.shape, n - 2, self.rng.choice((0, 0, 1, -1, 5))), self.b.iota(x.shape, n - 1)
        low = self.rng.choice((float("-inf"), float("-inf"), -1e9, 0.0))

        def expression(e: Expression, v: int, row: int, column: int) -> None:
            kept = e.ilt(column, row) if self.chance(0.5) else e.ile(column, row)
            if self.chance(0.3):
                kept = e.iand(kept, e.ilt(row, e.iadd(column, e.i32(self.rng.choice((1, 3, 8))))))
            if self.chance(0.8):
                e.select(kept, v, e.f32(low))
            else:
                e.select(kept, e.f32(low), v)

        self.add(self.b.map(x.shape, [x, rows, columns], expression, dtype=F32))

    def softmax(self) -> None:
        """Adds exp(x - max) / sum along the last axis, perhaps with its gradient."""
        x = self.any()
        if not x.shape:
            return
        n = len(x.shape) - 1
        top = self.b.max(x).unsqueeze(n)
        e = self.b.map(x.shape, [x, top], lambda e, v, m: e.fexp(e.fsub(v, m)), dtype=F32)
        total = self.b.sum(e).unsqueeze(n)
        p = self.add(self.b.map(x.shape, [e, total], lambda e, v, t: e.fdiv(v, t), dtype=F32))
        if self.chance(0.5):
            g = self.like(x.shape)
            pg = self.b.map(x.shape, [p, g], lambda e, a, b: e.fmul(a, b), dtype=F32)
            s = self.b.sum(pg).unsqueeze(n)
            self.add(self.b.map(x.shape, [pg, p, s], lambda e, a, b, c: e.fsub(a, e.fmul(b, c)), dtype=F32))

    def reduced(self) -> Tensor | None:
        """Adds a fold over some axes, moved last by a copy or product, or over the last axis directly."""
        x = self.any()
        n = len(x.shape)
        if not n:
            return None
        fold = self.rng.choice((self.b.sum, self.b.sum, self.b.sum, self.b.max, self.b.min))
        if self.chance(0.4):
            self.add(fold(x))
            return None
        axes = self.rng.sample(range(n), self.rng.randint(1, n))
        if self.chance(0.7):
            axes.sort()
        rest = [axis for axis in range(n) if axis not in axes]
        if self.chance(0.2):
            self.rng.shuffle(rest)
        turned = x.permute(*rest, *axes)
        kept, k = [x.shape[axis] for axis in rest], prod(x.shape[axis] for axis in axes)
        if self.chance(0.5):
            made = self.b.map(turned.shape, [turned])
        else:
            other = self.like(x.shape).permute(*rest, *axes)
            made = self.b.map(turned.shape, [turned, other], lambda e, v, w: e.fmul(v, w), dtype=F32)
        result = self.add(fold(made.reshape(*kept, k)))
        if self.chance(0.5) and kept:  # the next step of a norm
            back = result
            strides = dict(zip(rest, back.strides, strict=True))
            spread = replace(back, shape=x.shape, strides=tuple(strides.get(axis, 0) for axis in range(n)))
            self.add(self.b.map(x.shape, [x, spread], self.expression(2), dtype=F32))
        return result

    def reduce(self) -> None:
        self.reduced()

    def pad(self) -> None:
        """Adds zeros before and after along some axes, or one side only."""
        x = self.any()
        if not x.shape:
            return
        for _ in range(self.rng.choice((1, 1, 2, 2, 3))):
            axis = self.rng.randrange(len(x.shape))
            parts, shape = [x], list(x.shape)
            for end in (0, 1):
                if (size := self.rng.choice((0, 1, 1, 2, 3))) and self.chance(0.8):
                    shape[axis] = size
                    zeros = self.b.word(shape, 0, F32)
                    parts.insert(end * len(parts), zeros)
            if sum(p.shape[axis] for p in parts) * (prod(x.shape) // x.shape[axis]) > MOST:
                return
            if len(parts) == 1 and self.chance(0.7):
                continue
            x = self.b.concat(parts, axis)
        self.add(x)

    def join(self) -> None:
        """Concatenates tensors of equal other extents; or inserts zeros between a tensor's elements."""
        x = self.any()
        if not x.shape:
            return
        axis = self.rng.randrange(len(x.shape))
        if self.chance(0.3) and len(x.shape) < 6 and prod(x.shape) * 2 <= MOST:
            wide = x.unsqueeze(axis + 1)
            zeros = self.b.word(wide.shape, 0, F32)
            shape = [*x.shape]
            shape[axis] *= 2
            self.add(self.b.concat([wide, zeros], axis + 1).reshape(*shape))
            return
        parts = [x]
        for _ in range(self.rng.choice((0, 1, 1, 2))):
            own = list(x.shape)
            own[axis] = self.rng.choice((1, 2, 3, x.shape[axis]))
            parts.append(self.like(own))
        if sum(prod(p.shape) for p in parts) <= MOST:
            self.rng.shuffle(parts)
            self.add(self.b.concat(parts, axis))

    def copy(self) -> None:
        """Adds a transposed, reversed or strided copy."""
        x = self.flipped(self.any())
        if x.shape:
            x = x.permute(*self.rng.sample(range(len(x.shape)), len(x.shape)))
        self.add(self.copied(x))

    def reshape(self) -> None:
        """Reads the same elements with other axes."""
        x = self.any()
        if x.strides != row_major(x.shape):
            return
        shape, left = [], prod(x.shape)
        for _ in range(self.rng.choice((0, 1, 2, 3))):
            divisors = [d for d in range(1, min(left, 64) + 1) if left % d == 0]
            shape.append(self.rng.choice(divisors))
            left //= shape[-1]
        self.add(x.reshape(*shape, left))

    def embed(self) -> None:
        """Adds rows of a table by index, or the gradient: a sum over a one-hot map."""
        tokens, width, rows = (
            self.rng.choice((3, 8, 33, 100)),
            self.rng.choice((1, 4, 8, 16, 33)),
            self.rng.choice((2, 7, 40)),
        )
        offset = self.rng.randrange(512 - tokens + 1)
        index = self.b.input(ENTRIES).slice(0, offset, offset + tokens)
        if self.chance(0.5):
            self.add(self.b.gather(index, self.like((rows, width))))
            return
        grad = self.like((tokens, width))
        ones = self.b.map(
            (rows, tokens),
            [self.b.iota((rows, tokens), 0), index.unsqueeze(0)],
            lambda e, r, i: e.i2f(e.ieq(r, i)),
            dtype=F32,
        )
        if self.chance(0.4):  # the transposing map computes the summands
            both = [grad.permute(1, 0), self.like((tokens, width)).permute(1, 0)]
            turned = self.b.map((width, tokens), both, lambda e, v, w: e.fmul(v, w), dtype=F32)
        else:
            turned = self.b.map((width, tokens), [grad.permute(1, 0)])
        left, right = ones.unsqueeze(1), turned.unsqueeze(0)
        self.add(self.b.dot(left, right) if self.chance(0.7) else self.b.dot(turned.unsqueeze(1), ones.unsqueeze(0)))

    def update(self) -> None:
        """Adds an optimizer's maps over a flat tensor: two or three results of the same operands."""
        x = self.any()
        n = prod(x.shape)
        if x.strides != row_major(x.shape):
            return
        flat = x.reshape(n)
        state = [self.like((n,)) for _ in range(self.rng.choice((1, 2)))] if n <= 12000 else [flat]
        scale = self.b.input(ENTRIES + 1)
        moments = [self.add(self.b.map((n,), [flat, m, scale], self.expression(3), dtype=F32)) for m in state]
        self.add(self.b.map((n,), [flat, *moments], self.expression(1 + len(moments)), dtype=F32))

    def noise(self) -> None:
        """Adds dropout: random words, a comparison, a product."""
        x = self.any()
        words = self.b.random(x.shape, self.rng.randrange(1 << 30))
        self.add(self.b.map(x.shape, [x, words], lambda e, v, w: e.fmul(v, e.i2f(e.ilt(w, e.i32(1 << 29)))), dtype=F32))

    # --- the whole --------------------------------------------------------------------------------------------------

    def case(self, name: str, seed: int) -> Case | None:
        """Returns a Program of a few steps; None if no step succeeded."""
        steps: list[tuple[Callable[[], object], float]] = [
            (self.product, 12), (self.pointwise, 5), (self.reduce, 4), (self.pad, 3), (self.join, 2), (self.copy, 2),
            (self.convolution, 5), (self.attention, 3), (self.shared, 0.3), (self.softmax, 2), (self.mask, 1),
            (self.reshape, 2), (self.embed, 1), (self.update, 1), (self.noise, 1),
        ]  # fmt: skip
        for _ in range(self.rng.choice((1, 2, 3, 3, 5, 8, 14))):
            self.rng.choices([s for s, _ in steps], [weight for _, weight in steps])[0]()
        if not self.b.ops:
            return None
        shown = [t.index for t in self.pool if t.tag == Tag.OP and self.chance(0.15)]
        inputs = self.b.finish([]).inputs
        others = [Alias(Alias.STATE_KIND, 0)] if self.chance(0.2) else []
        program = finished(self.b.ops, inputs, self.b.consts, shown, others)
        return filled(name, program, seed)


def make(seed: int, name: str) -> Case | None:
    """Returns the case of a seed."""
    return Layers(seed).case(name, seed)
