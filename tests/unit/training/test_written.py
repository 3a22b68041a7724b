"""State that a step writes beside the parameters: codebooks, centres, teachers, queues, spectral norms. Three steps of
the Program are those of eager PyTorch, and two slots' rounds are merged by the rule of each buffer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from lockstep.execution.jobs import TrainingJob
from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.protocol.errors import LoweringError, UsageError
from lockstep.storage.dataset import Dataset
from lockstep.tracing import trace
from lockstep.training import evaluation
from lockstep.training.baseline import Sample, flat_parameters, optimise
from lockstep.training.export import load_model, save_model
from lockstep.training.job import Batch, TracedPrograms, build_programs, training_job
from lockstep.training.losses import Loss
from lockstep.training.merging import merged_statistics
from lockstep.training.optimizers import AdamW
from lockstep.training.parameters import first_statistics, initial_parameters, layout_of, writable
from lockstep.training.rehearsal import Rehearsal
from lockstep.training.strategies import diloco
from lockstep.training.trial import trial

ROWS = np.random.default_rng(0).integers(0, 64, (40, 8)).astype(np.int32)
BATCH, SEED, STEPS = Batch(4, 8), bytes(32), 3
INNER = AdamW(learning_rate=3e-3, warmup=0)
SPEC = diloco.DiLoCo(inner=INNER, inner_steps=STEPS)
CODES, KEYS = 6, 12


def numbers(rows: Tensor) -> Tensor:
    return rows.float() / 32 - 1


def squares(model: Any, rows: Tensor) -> Tensor:
    found: Tensor = model(numbers(rows)).pow(2).mean()
    return found


def value_of(model: Any, rows: Tensor) -> Tensor:
    """The loss that a model returns."""
    found: Tensor = model(numbers(rows)).mean()
    return found


class Small(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        """[B, 8] -> [B, 4]."""
        found: Tensor = self.second(torch.tanh(self.first(x)))
        return found


class CentredNet(nn.Module):
    """Its outputs lose their running mean."""

    def __init__(self, how: str = "in place") -> None:
        super().__init__()
        self.net, self.how = Small(), how
        self.register_buffer("centre", torch.zeros(4), persistent=how != "not persistent")
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """[B, 8] -> [B, 4]."""
        out = self.net(x)
        mean = out.detach().mean(0)
        if self.how == "assigned":
            self.centre = 0.9 * self.centre + 0.1 * mean
        elif self.how == "registered":
            self.register_buffer("centre", 0.9 * self.centre + 0.1 * mean)
        elif self.how == "copy_":
            self.centre[:2].copy_(0.9 * self.centre[:2] + 0.1 * mean[:2])
        elif self.how == "counted":
            self.seen += 1
            self.centre.lerp_(mean, 1 / self.seen.clamp(min=2))
        else:
            self.centre.mul_(0.9).add_(mean, alpha=0.1)
        return out - self.centre


class Codebook(nn.Module):
    """A VQ-VAE whose codes are running means (van den Oord 2017, appendix A.1)."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.encoder, self.decoder, self.how = nn.Linear(8, 4), nn.Linear(4, 8), how
        self.register_buffer("codes", torch.randn(CODES, 4))
        self.register_buffer("counts", torch.ones(CODES))
        self.register_buffer("sums", self.codes.clone())

    def forward(self, x: Tensor) -> Tensor:
        """[B, 8] -> the loss."""
        z = self.encoder(x)
        nearest = torch.cdist(z, self.codes).argmin(1) if self.how == "cdist" else self._nearest(z)
        one, found = F.one_hot(nearest, CODES).float(), F.embedding(nearest, self.codes)
        if self.training:
            self._move(one, z.detach())
        passed = z + (found - z).detach()
        return (self.decoder(passed) - x).pow(2).mean() + 0.25 * (found.detach() - z).pow(2).mean()

    def _nearest(self, z: Tensor) -> Tensor:
        far = z.pow(2).sum(1, keepdim=True) - 2 * z @ self.codes.t() + self.codes.pow(2).sum(1)
        return far.argmin(1)

    @torch.no_grad()
    def _move(self, one: Tensor, z: Tensor) -> None:
        if self.how == "data":
            self.counts.data.mul_(0.9).add_(one.sum(0), alpha=0.1)
            self.sums.data.mul_(0.9).add_(one.t() @ z, alpha=0.1)
            total = self.counts.sum()
            shares = (self.counts + 1e-5) / (total + CODES * 1e-5) * total
            self.codes.data.copy_(self.sums / shares.unsqueeze(1))
        else:
            self.counts = 0.9 * self.counts + 0.1 * one.sum(0)
            self.sums = 0.9 * self.sums + 0.1 * (one.t() @ z)
            self.codes = self.sums / self.counts.unsqueeze(1)


class Taught(nn.Module):
    """A student and its momentum teacher, as BYOL has them (Grill 2020)."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.student, self.predictor, self.how = Small(), nn.Linear(4, 4), how
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    @torch.no_grad()
    def follow(self) -> None:
        """The teacher goes after the student."""
        for t, s in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            if self.how == "foreach":
                continue
            if self.how == "data =":
                t.data = t.data * 0.9 + s.data * 0.1
            elif self.how == "lerp_":
                t.lerp_(s, 0.1)
            else:
                t.mul_(0.9).add_(s, alpha=0.1)
        if self.how == "foreach":
            teacher, student = list(self.teacher.parameters()), list(self.student.parameters())
            torch._foreach_mul_(teacher, 0.9)
            torch._foreach_add_(teacher, torch._foreach_mul(student, [0.1] * len(student)))

    def forward(self, x: Tensor) -> Tensor:
        """[B, 8] -> the loss."""
        if self.how != "by the loss":
            self.follow()
        with torch.no_grad():
            goal = self.teacher(x + 0.1)
        return 2 - 2 * F.cosine_similarity(self.predictor(self.student(x)), goal, dim=-1).mean()


def followed(model: Any, rows: Tensor) -> Tensor:
    """The teacher's parameters are listed before the model is called, and moved afterwards."""
    pairs = list(zip(model.teacher.parameters(), model.student.parameters(), strict=True))
    found = value_of(model, rows)
    with torch.no_grad():
        for t, s in pairs:
            t.mul_(0.9).add_(0.1 * s)
    return found


class Contrast(nn.Module):
    """A queue of keys that a momentum encoder makes (He 2020, algorithm 1)."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.query, self.how = Small(), how
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(4, KEYS), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))
        self.merge_rules = {"queue": "first"}

    def forward(self, x: Tensor) -> Tensor:
        """[B, 8] -> the loss."""
        query = F.normalize(self.query(x), dim=1)
        with torch.no_grad():
            for k, q in zip(self.key.parameters(), self.query.parameters(), strict=True):
                k.data = k.data * 0.99 + q.data * 0.01
            key = F.normalize(self.key(x + 0.05), dim=1)
        scores = torch.cat([(query * key).sum(1, keepdim=True), query @ self.queue.clone().detach()], 1) / 0.2
        self.enqueue(key)
        return F.cross_entropy(scores, torch.zeros(len(x), dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        """The oldest keys make room."""
        n = len(keys)
        if self.how == "a slice":
            at = int(self.pointer)
            self.queue[:, at : at + n] = keys.T
            self.pointer[0] = (at + n) % KEYS
        elif self.how == "a pointer":
            self.queue[:, (self.pointer + torch.arange(n)) % KEYS] = keys.T
            self.pointer.copy_((self.pointer + n) % KEYS)
        else:
            self.queue = torch.cat([keys.T, self.queue[:, :-n]], 1)


class Distilled(nn.Module):
    """A student, a teacher and the centre of its outputs (Caron 2021, algorithm 1); the loss moves both."""

    def __init__(self) -> None:
        super().__init__()
        self.student = Small()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(1, 4))


def distilled(model: Any, rows: Tensor) -> Tensor:
    x = numbers(rows)
    mine = F.log_softmax(model.student(x) / 0.1, -1)
    with torch.no_grad():
        theirs = model.teacher(x + 0.1)
        goal = F.softmax((theirs - model.centre) / 0.04, -1)
        model.centre = 0.9 * model.centre + 0.1 * theirs.mean(0, keepdim=True)
        for t, s in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
            t.data.mul_(0.99).add_(0.01 * s.detach().data)
    return -(goal * mine).sum(-1).mean()


def normed(layer: nn.Module) -> nn.Module:
    """A bias before the norm would have the gradient zero, and rounding alone in it."""
    return nn.Sequential(nn.Linear(8, 8, bias=False), nn.Unflatten(1, (2, 4)), layer, nn.Flatten())


def cubes(model: Any, rows: Tensor) -> Tensor:
    found: Tensor = (model(numbers(rows)) + 1).pow(3).mean()
    return found


def spectral(norm: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return nn.Sequential(norm(nn.Linear(8, 10)), nn.ReLU(), nn.Linear(10, 4))


CASES: dict[str, tuple[Callable[[], nn.Module], Loss, set[str]]] = {
    "a centre": (CentredNet, squares, {"centre"}),
    **{
        f"a centre, {how}": (partial(CentredNet, how), squares, {"centre"})
        for how in ("assigned", "registered", "copy_", "not persistent")
    },
    "a centre, counted": (partial(CentredNet, "counted"), squares, {"centre", "seen"}),
    **{
        f"a codebook, {how}": (partial(Codebook, how), value_of, {"codes", "counts", "sums"})
        for how in ("data", "assigned", "cdist")
    },
    **{
        f"a teacher, {how}": (partial(Taught, how), value_of, {"teacher"})
        for how in ("data =", "lerp_", "in place", "foreach")
    },
    "a teacher, by the loss": (partial(Taught, "by the loss"), followed, {"teacher"}),
    "a queue, rolled": (partial(Contrast, "rolled"), value_of, {"queue", "key"}),
    "a queue, a pointer": (partial(Contrast, "a pointer"), value_of, {"queue", "pointer", "key"}),
    "a teacher's centre": (Distilled, distilled, {"centre", "teacher"}),
    "spectral norm": (partial(spectral, nn.utils.parametrizations.spectral_norm), squares, {"0"}),
    "spectral norm by hooks": (partial(spectral, nn.utils.spectral_norm), squares, {"0"}),
    "cumulative batch norm": (lambda: normed(nn.BatchNorm1d(2, momentum=None)), cubes, {"2"}),
    "instance norm": (lambda: normed(nn.InstanceNorm1d(2, affine=True, track_running_stats=True)), cubes, {"2"}),
}


IN_PASSES = ("a centre, assigned", "a teacher, foreach", "spectral norm", "instance norm")
"""Cases whose steps are accumulated over two passes: the second starts from what the first has left."""


@cache
def model_of(name: str) -> nn.Module:
    torch.manual_seed(1)
    return CASES[name][0]()


@cache
def built(name: str, batch: Batch = BATCH) -> TracedPrograms:
    return build_programs(model_of(name), CASES[name][1], SPEC, batch=batch, rounds=1, slots=2)


def three_steps(name: str, batch: Batch = BATCH) -> tuple[list[float], list[Any]]:
    """The losses before each step, and the checkpoint's tensors after the last."""
    model, programs = model_of(name), built(name, batch)
    flat = initial_parameters(model, 0)
    held, zero = [flat, *first_statistics(model, programs.layout)], np.zeros_like(flat)
    state = list(programs.sections.slot_state(held, held, [zero, zero], np.array(0, np.int32)))
    assert programs.loss is not None
    step, looking, losses = compile(programs.step), compile(programs.loss), []
    for t in range(1, STEPS + 1):
        context = StepContext(SEED, 0, 0, t)
        losses += [float(x) for x in looking.run(list(state), context, ROWS) if x is not None]
        state = list(step.run(state, context, ROWS))
    return losses, state[: len(programs.layout.held)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_three_steps_are_those_of_eager_pytorch(name: str) -> None:
    _, loss, parts = CASES[name]
    batch = Batch(2, 8, 2) if name in IN_PASSES else BATCH
    before = {n: x.clone() for n, x in writable(model_of(name)).items()}
    layout = built(name, batch).layout
    losses, held = three_steps(name, batch)
    assert all(torch.equal(before[n], x) for n, x in writable(model_of(name)).items()), "the model is left as it was"
    assert {s.name.split(".")[0] for s in layout.statistics} == parts
    eager, sample = copy.deepcopy(model_of(name)), Sample(ROWS, batch, SEED)
    due = optimise(eager, lambda t: sample.value(eager, loss, t), INNER, steps=STEPS)
    np.testing.assert_allclose(losses, due, atol=1e-5)
    arrays = [torch.from_numpy(np.array(x)) for x in held]
    state = writable(eager)
    for n, x in layout.buffers(arrays).items():
        np.testing.assert_allclose(x, state[n].detach().float(), atol=1e-5, err_msg=n)
    for n, x in layout.split(*arrays[: len(layout.sizes)]).items():
        np.testing.assert_allclose(x, dict(eager.named_parameters())[n].detach(), atol=1e-5, err_msg=n)


def job_of(name: str, model: nn.Module, **more: Any) -> TrainingJob:
    return training_job(
        model, SPEC, Dataset(ROWS, 64), batch=BATCH, loss=CASES[name][1], rounds=1, slots=2, min_slots=1, **more
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_round_of_two_slots_is_merged_by_rules(name: str) -> None:
    job = job_of(name, copy.deepcopy(model_of(name)))
    rehearsal, layout = Rehearsal(job), built(name).layout
    first = rehearsal.first()
    sent = [torch.from_numpy(np.array(rehearsal.slot(first, k)[0][-1])) for k in range(2)]
    after = rehearsal.next(first)
    merged = layout.buffers([torch.from_numpy(np.array(x)) for x in after.checkpoint.shared])
    for s in layout.statistics:
        mine, theirs = (x[s.offset : s.offset + s.elements].view(s.shape) for x in sent)
        due = mine if s.merge == "first" else (mine + theirs) / 2
        assert torch.equal(merged[s.name], due), f"{s.name}: {s.merge}"
    assert layout.statistics[0].merge == ("first" if name.startswith("a queue") else "mean")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_files_have_them_and_a_job_goes_on_from_there(name: str, tmp_path: Path) -> None:
    model = copy.deepcopy(model_of(name))
    job = job_of(name, model)
    rehearsal = Rehearsal(job)
    after = rehearsal.next(rehearsal.first())
    merged = built(name).layout.buffers([torch.from_numpy(np.array(x)) for x in after.checkpoint.shared])
    save_model(tmp_path, after.checkpoint.shared, job.parameters, job.model, job.programs.step.consts)
    earlier = load_model(tmp_path, copy.deepcopy(model))
    got = writable(earlier)
    for n, x in merged.items():
        assert torch.equal(got[n].float(), x), n
    again = job_of(name, model, first=flat_parameters(earlier), earlier=earlier)
    assert again.genesis is not None
    for mine, theirs in zip(again.genesis.shared, after.checkpoint.shared, strict=True):
        assert np.array_equal(mine, theirs)
    assert again.programs.step.root == job.programs.step.root


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_check_compares_them_with_eager_pytorch(name: str) -> None:
    model, (_, loss, _) = copy.deepcopy(model_of(name)), CASES[name]
    tried = trial(model, loss, SPEC, BATCH, built(name), ROWS)
    assert (tried.eager, tried.wrong, tried.differing) == ("", "", ())
    assert {s.name for s in built(name).layout.statistics} <= {g.name for g in tried.gradients}


@pytest.mark.sampled(0)
@pytest.mark.parametrize("name", CASES)
def test_evaluation_reads_them_from_the_checkpoint(name: str) -> None:
    model, (_, loss, _) = model_of(name), CASES[name]
    _, held = three_steps(name)
    programs = evaluation.build_programs(model, loss, batch=BATCH, batches=2, rounds=1, slots=2)
    assert programs.layout == built(name).layout
    plain, layout = copy.deepcopy(model), programs.layout
    arrays = [torch.from_numpy(np.array(x)) for x in held]
    with torch.no_grad():
        state = {**writable(plain), **dict(plain.named_parameters())}
        for n, x in {**layout.buffers(arrays), **layout.split(*arrays[: len(layout.sizes)])}.items():
            state[n].copy_(x)
        due = Sample(ROWS, BATCH, SEED).value(plain.eval(), loss, 1).item()
    start = programs.sections.slot_state(held, held, [np.zeros(2, np.float32)], np.array(0, np.int32))
    out = list(compile(programs.step).run(start, StepContext(SEED, 0, 0, 1), ROWS))
    assert float(np.asarray(out[programs.sections.carry.start])[0]) == pytest.approx(due, rel=1e-5)


# --- rules of merges ---------------------------------------------------------------------------------------


class Ruled(nn.Module):
    """Four buffers, each with a rule of its own."""

    def __init__(self, **rules: str) -> None:
        super().__init__()
        self.line = nn.Linear(8, 4)
        for name in ("mean", "first", "max", "min"):
            self.register_buffer(name, torch.zeros(3))
        self.merge_rules = rules


def test_merge_rules_are_those_of_the_module() -> None:
    model = nn.Sequential(Ruled(first="first", ma="max", m_n="min"), nn.Identity())
    with pytest.raises(UsageError, match=r"0\.merge_rules has \{'ma': 'max'\}") as caught:
        layout_of(model)
    assert "mean, first, max, min" in caught.value.hint
    model[0].merge_rules = {"first": "first", "ma*": "max", "m?n": "min", "mean": "mean"}
    layout = layout_of(model, written={f"0.{n}": "" for n in ("mean", "first", "max", "min")})
    assert {s.name: s.merge for s in layout.statistics} == {f"0.{n}": n for n in ("mean", "first", "max", "min")}
    program = trace(
        lambda a, b, c, mask: [merged_statistics(layout, [a, b, c], mask)],
        *(torch.empty(256, device="meta") for _ in range(3)), torch.empty(3, device="meta"),
    )  # fmt: skip
    sent = np.zeros((3, 256), np.float32)
    sent[:, :12] = np.random.default_rng(1).standard_normal((3, 12))
    run = compile(program)
    for mask in ([1, 1, 1], [0, 1, 1], [0, 0, 1], [1, 0, 1], [0, 0, 0]):
        (got,) = run.run([*sent, np.array(mask, np.float32)], StepContext(SEED, 0, 0, 1))[:1]
        heard = sent[np.array(mask) > 0][:, :12]
        due = np.zeros(12, np.float32)
        if len(heard):
            due = np.concatenate([heard[:, :3].mean(0), heard[0, 3:6], heard[:, 6:9].max(0), heard[:, 9:].min(0)])
        np.testing.assert_allclose(got[:12], due, rtol=1e-6, err_msg=str(mask))
        assert not got[12:].any()


# --- what is refused ---------------------------------------------------------------------------------------


class Odd(nn.Module):
    """Writes what no state can have."""

    def __init__(self, call: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.line, self.call = nn.Linear(8, 4), call
        self.register_buffer("kept", torch.zeros(4))
        self.register_buffer("turned", torch.zeros(4, dtype=torch.complex64))
        self.register_buffer("large", torch.full((2,), 1 << 30))

    def forward(self, x: Tensor) -> Tensor:
        """[B, 8] -> [B, 4]."""
        return self.call(self, self.line(x))


def _growing(m: Any, y: Tensor) -> Tensor:
    m.kept = torch.cat([m.kept, y.detach()[0]])
    return y


def _complex(m: Any, y: Tensor) -> Tensor:
    m.turned = torch.complex(y.detach()[0], y.detach()[1])
    return y


def _counting(m: Any, y: Tensor) -> Tensor:
    m.large += 1
    return y


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("model", "loss", "what", "hint"),
    [
        (partial(Contrast, "a slice"), value_of, r"test_written\.py.*the step writes pointer", "arange"),
        (partial(Odd, _growing), squares, r"kept.*shape \(8,\), where it had \(4,\)", "keep its shape"),
        (partial(Odd, _complex), squares, r"writes turned, a tensor of torch\.complex64", "view_as_real"),
        (partial(Odd, _counting), squares, r"writes large, integers up to 1073741824", "below 16777216"),
    ],
    ids=["a pointer as a number", "a buffer that grows", "complex numbers", "large integers"],
)
def test_what_no_state_can_have_is_refused_by_name(
    model: Callable[[], nn.Module], loss: Loss, what: str, hint: str
) -> None:
    with pytest.raises((LoweringError, UsageError), match=what) as caught:
        build_programs(model(), loss, SPEC, batch=BATCH, rounds=1, slots=2)
    assert hint in caught.value.hint
