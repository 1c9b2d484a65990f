"""How long a pipelined step takes at least: closed form for equal stages, and proven lower bounds.

Notation of the proofs: f and b are times of one chunk of one stage for one micro-batch, w = f + b; F, B and W are their
sums over all stages and chunks. A path is a chain of operations in which each must wait for the one before, either
because a stage executes them in this order or because data flows; its length never exceeds the makespan. A convex
combination of lengths of paths is therefore a lower bound as well.
"""

from __future__ import annotations

import numpy as np

from planner.cost.orders import Schedule, group_size, splits, warmup
from planner.units import Array, IntArray, Number

LONGEST = 64
"""Stages of a run that is looked at as a whole, at most."""


def makespan_equal(
    p: int | IntArray, m: int | IntArray, v: int | IntArray, forward: Number, backward: Number
) -> Array:
    """Makespan where all chunks take equal times and nothing is lost in sending; the same for every schedule.

    Args:
        p: stages.
        m: micro-batches.
        v: chunks a stage, 1 unless interleaved.
        forward: a stage's time for one micro-batch, all its chunks together.
        backward: the same backwards.

    Shapes:
        All broadcast.

    Units:
        Seconds.

    Source:
        Narayanan et al. 2021, Efficient Large-Scale Language Model Training, section 2.2.
    """
    return np.asarray((np.multiply(m, v) + p - 1) / v * np.add(forward, backward), np.float64)


def lower_bound(
    schedule: int | IntArray,
    p: int | IntArray,
    m: int | IntArray,
    v: int | IntArray,
    forward: Number,
    backward: Number,
    send: Number = 0.0,
) -> Array:
    """A makespan that no division of the model over stages and chunks can beat.

    Args:
        schedule: code of the :class:`Schedule`.
        p: stages.
        m: micro-batches.
        v: chunks a stage.
        forward: F, one micro-batch through the whole model.
        backward: B, the same backwards.
        send: least delay of any boundary.

    Shapes:
        All broadcast.

    Units:
        Seconds.

    Proof:
        Beside the formula of each schedule, below; with split backwards, some stage is as busy as the mean.
    """
    p, m, v = np.asarray(p), np.asarray(m), np.asarray(v)
    hop = np.multiply(send, p > 1)
    gpipe = np.add(forward, backward) * (1 + (m - 1) / p) + 2 * (p - 1) * hop
    alternating = _alternating_bound(p, m, forward, backward) + 2 * (p - 1) * hop
    whole = group_size(p, np.where(np.equal(schedule, Schedule.INTERLEAVED), m, p))
    interleaved = _interleaved_bound((p, m, v), whole, forward, backward, (p * v - 1) * hop)
    busiest = np.add(forward, backward) * (m / p)
    kinds = [
        np.equal(schedule, Schedule.GPIPE),
        np.equal(schedule, Schedule.ONE_F_ONE_B),
        splits(np.asarray(schedule)),
    ]
    return np.asarray(np.select(kinds, [gpipe, alternating, busiest], interleaved), np.float64)


def _alternating_bound(p: IntArray, m: IntArray, forward: Number, backward: Number) -> Array:
    """The bound of 1F1B: the best on F and B alone where m > p, and in all cases that tests compare (p <= 4).

    Stage i executes p-i forwards before its first backward. Path D_i, for i > p-m: micro-batch 0 down and up to stage
    i, all that i executes up to its last forward, the last micro-batch down and up. Its length is
    W + (m-p+i) w_i + sum of w_j over j > i, so m-1 terms beside W.

    m > p: weights x_i with x_i (m-p+i) + sum of x_j over j < i = (m-1)/p give every w the coefficient (m-1)/p and sum
    to 1; none is negative, as the sum stays below 1 <= (m-1)/p. The bound W + (m-1) W/p is attained by equal stages.

    m <= p: the first q = p-m+1 stages execute all forwards first and have paths W + (m-1) f_i and W + (m-1) b_i; for
    the others D_q is W + sum of their w. Weights 1 on D_q and 1/(m-1) on each of the 2q paths, scaled to
    sum 1, give W + (m-1) W/(2p-m+1); without the forward paths, W + (m-1) B/p; without the backward ones,
    W + (m-1) F/p. GPipe has such paths for all pairs of stages, W + (m-1) (f_i + b_k), with the mean W + (m-1) W/p.
    """
    total = np.add(forward, backward)
    few = np.maximum(total / np.maximum(2 * p - m + 1, 1), np.maximum(forward, backward) / p)
    return np.asarray(total + (m - 1) * np.where(m > p, total / p, few), np.float64)


def _interleaved_bound(
    shape: tuple[IntArray, IntArray, IntArray],
    group: IntArray,
    forward: Number,
    backward: Number,
    sends: Number,
) -> Array:
    """The bound of the interleaved schedule (p, m, v), with ``sends`` the delays of one pass through the model.

    First family: micro-batch 0 through the chunks before c, and in chunk c down to stage i; all that i executes up to
    the last micro-batch's backward of chunk d, which comes after all forwards because the warm-up is at least
    (v-1) g, with g micro-batches in a group; that micro-batch to the end. Let c and d be uniform, i have probability
    y_i, Y_j be the sum of y after j and k = (v-1)/v. At stage j the least coefficient over chunks is
    m y_j + Y_j/v + min(0, k (1 - g y_j)). With y_j = 1/p + 2 e (j - (p-1)/2) / (p-1) and 0 <= e <= 1/p, so that
    Y_j >= (p-1-j)/p, both parts of the minimum are linear in j and least at the first or the last stage. Any e is
    right; where g = p, e = L / (2m - k p) with L = (p-1)/(p v) gives the most, m/p + L (m - k p)/(2m - k p).

    Second family: micro-batch 0 forwards through everything; then only backwards: micro-batch 0 through the chunks
    after c, and in chunk c up to stage i; all backwards of i up to the last micro-batch's of chunk c; that one to the
    end. With i and c uniform every b has the coefficient m/p + k (1 - g/p) + L. Or forwards and backwards exchanged.

    Third: the first micro-batch forwards and backwards.
    """
    p, m, v = shape
    total, lead, k = np.add(forward, backward), (p - 1) / (p * v), (v - 1) / v
    odd = k * (1 - group / p)
    e = np.clip((lead - odd) / np.maximum(2 * m - k * group, 1), 0, 1 / p)
    first, last = m / p - m * e + lead, m / p + odd + (m - k * group) * e
    others = m / p + m * e, m / p + odd - (m - k * group) * e + lead
    least = np.minimum(np.minimum(first, last), np.minimum(*others))
    both = total * least + sends
    single = total + np.maximum(forward, backward) * (m / p + odd + lead - 1)
    return np.asarray(
        np.maximum(both, np.maximum(single, total) + np.multiply(2, sends)), np.float64
    )


def stage_bound(
    schedule: Schedule,
    m: int | IntArray,
    forward: Array,
    backward: Array,
    send: Number = 0.0,
    weight: Array | None = None,
) -> Array:
    """A lower bound on the makespan of given stages, exact for GPipe and for equal stages.

    Args:
        schedule: the schedule of all candidates.
        m: micro-batches.
        forward: time of each stage's chunk for one micro-batch.
        backward: the same backwards.
        send: as in :func:`planner.cost.program.simulate`.
        weight: the part of the backward time in which gradients of weights are made.

    Shapes:
        m (...), forward, backward and weight (..., stages, chunks), send broadcasts to (..., stages); result (...).

    Units:
        Seconds.

    Proof:
        Stage i executes m w_i, at best without a pause. The earliest arrival of a gradient replaces the time of the
        forwards before its first backward; the least time from its last forward to the end replaces, by symmetry,
        the backwards after it. Both hold together unless all forwards come before all backwards; then one of
        them, and on the other side the plain lead-in. GPipe: each phase is a flow shop of equal jobs. Split backwards:
        only the arrival holds, with the input's gradients alone; in a V or an order of unknown warm-up, the lead-in.
    """
    p, v = forward.shape[-2:]
    hops = np.broadcast_to(send, (*np.shape(send)[:-1], p)) if p > 1 else np.zeros(1)
    repeats = np.asarray(m)
    if schedule == Schedule.GPIPE:
        phases = [x.sum((-2, -1)) + (repeats - 1) * x.max((-2, -1)) for x in (forward, backward)]
        return np.asarray(phases[0] + phases[1] + 2 * hops[..., :-1].sum(-1), np.float64)
    rows = repeats[..., None]
    if schedule.folded or schedule.adaptive:
        crossed = np.cumsum(hops, axis=-1) - hops
        lead = np.cumsum(forward[..., 0], axis=-1) - forward[..., 0] + crossed
        return np.asarray((rows * (forward + backward).sum(-1) + lead).max(-1), np.float64)
    first = np.minimum(warmup(schedule, p, rows, v, np.arange(p)) + 1, rows * v)
    group = group_size(p, rows)[..., None] if v > 1 else np.asarray(p)
    rounds, rest = np.divmod(first[..., None], group * v)
    counts = rounds * group + np.clip(rest - np.arange(v) * group, 0, group)
    if schedule.splits:
        gradient = backward if weight is None else backward - weight
        _, arrival = _turn(forward, gradient, hops, counts)
        return np.asarray((rows * (forward + backward).sum(-1) + arrival).max(-1), np.float64)
    lead, arrival = _turn(forward, backward, hops, counts)
    tail, departure = _turn(backward, forward, hops, counts)
    apart = np.maximum(arrival + tail, lead + departure)
    joined = np.where(first < rows * v, arrival + departure, apart)
    return np.asarray((rows * (forward + backward).sum(-1) + joined).max(-1), np.float64)


def turning_bound(m: int, seconds: Array, send: Array) -> Array:
    """A lower bound on the makespan of given stages under 1F1B, mostly exact; it takes longer than the one above.

    Args:
        m: micro-batches.
        seconds: of every stage, forward and backward.
        send: delay of every boundary.

    Shapes:
        seconds (n, stages), send broadcasts to it; result (n,).

    Units:
        Seconds.

    Proof:
        The first micro-batch goes down and its gradient up to some stage i, the last micro-batch goes down from there
        and up; m - 1 - p + i lie between them. From the first stage of a run of L stages behind i on, the forward that
        follows a gradient goes down to the last one and its gradient, that of micro-batch L later, up again, with all
        sends inside the run. Counted are the slowest runs as often as they fit, and a run as long as what is left.
    """
    num, p = seconds.shape
    pairs = 2.0 * np.broadcast_to(send, seconds.shape)
    ends = np.zeros((num, p + 1))
    np.cumsum(seconds + pairs, axis=1, out=ends[:, 1:])
    sizes = np.arange(1, min(p, LONGEST) + 1)
    longest = np.full((num, len(sizes) + 1, p), -np.inf)
    longest[:, 0] = 0.0
    for size in sizes:
        run = ends[:, size:] - ends[:, : p + 1 - size] - pairs[:, size - 1 :]
        behind = np.maximum.accumulate(run[:, ::-1], axis=1)
        longest[:, size, : p + 1 - size] = behind[:, ::-1]
    slowest = 1 + (longest[:, 1:] / sizes[:, None]).argmax(axis=1)
    first = np.arange(max(0, p + 1 - m), p)
    often, left = np.divmod(m - 1 - p + first, slowest[:, first])
    row = np.arange(num)[:, None]
    path = often * longest[row, slowest[:, first], first] + longest[row, left, first]
    whole = ends[:, -1:] - pairs[:, -1:]
    return np.asarray((path + 2.0 * whole - ends[:, first]).max(axis=1, initial=0.0))


def _turn(down: Array, up: Array, hops: Array, counts: IntArray) -> tuple[Array, Array]:
    """Lead-in of each stage, and when its first upward operation can start less what it executes before.

    A gradient reaches stage i from any deeper stage l once that has executed its own warm-up, and from the last stage
    once the first micro-batch has passed through everything.
    """
    v = down.shape[-1]
    crossed = np.cumsum(hops, axis=-1) - hops
    lead = np.cumsum(down[..., 0], axis=-1) - down[..., 0] + crossed
    warm = (counts * down).sum(-1)
    turned = lead + warm
    through = down.sum((-2, -1)) + v * crossed[..., -1] + (v - 1) * hops[..., -1]
    turned[..., -1] = np.maximum(turned[..., -1], through)
    climb = np.cumsum(up[..., -1], axis=-1) + crossed
    start = np.maximum.accumulate((turned + climb)[..., ::-1], axis=-1)[..., ::-1] - climb
    return lead, start - warm
