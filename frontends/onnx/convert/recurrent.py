"""RNN, GRU and LSTM: the products with the inputs for all times at once, then one scan over time per direction.

Gates are in ONNX's order: RNN i; GRU z r h; LSTM i o f c. Where a sequence is shorter than the time axis its state
stays as it is and its output is 0; running backwards, such a sequence starts at its own end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import i64
from ingot.compiler.ops.contraction import contract
from ingot.compiler.ops.movement import Iota, concat, stack
from ingot.frontends.dsl import functions
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import onnx_op

RANKS = {0: 3, 1: 3, 2: 3, 3: 2, 4: 1, 5: 3}  # of the inputs that all three share
FEW_TIMES = 8  # of which a part is hardly less
Activation = Callable[[Any], Any]
Product = Callable[[Any, Any, int], Any]  # (x[..., i], weight[direction, g, i], direction) -> [..., g]

# name -> (default alpha, default beta, function); None: it takes no such number
_ACTIVATIONS: dict[str, tuple[float | None, float | None, Callable[..., Any]]] = {
    "relu": (None, None, lambda x, a, b: x.relu()),
    "tanh": (None, None, lambda x, a, b: x.tanh()),
    "sigmoid": (None, None, lambda x, a, b: x.sigmoid()),
    "affine": (1.0, 0.0, lambda x, a, b: x * a + b),
    "leakyrelu": (0.01, None, lambda x, a, b: x.leaky_relu(alpha=a)),
    "thresholdedrelu": (1.0, None, lambda x, a, b: (x > a).where(x, 0)),
    "scaledtanh": (1.0, 1.0, lambda x, a, b: (x * b).tanh() * a),
    "hardsigmoid": (0.2, 0.5, lambda x, a, b: x.hard_sigmoid(alpha=a, beta=b)),
    "elu": (1.0, None, lambda x, a, b: x.elu(alpha=a)),
    "softsign": (None, None, lambda x, a, b: x.softsign()),
    "softplus": (None, None, lambda x, a, b: x.softplus()),
}


def _activations(op: Call, defaults: Sequence[str], directions: int) -> list[list[Activation]]:
    """The activations of each direction. Numbers are taken in order by those that need one."""
    names = op.get("activations", list(defaults) * directions)
    if len(names) == len(defaults) < len(defaults) * directions:
        names = list(names) * directions
    op.require(len(names) == len(defaults) * directions, Kind.BAD_ATTRIBUTE, f"{len(names)} activations")
    alphas, betas = iter(op.get("activation_alpha", [])), iter(op.get("activation_beta", []))
    found: list[Activation] = []
    for name in names:
        entry = _ACTIVATIONS.get(name.lower())
        op.require(entry is not None, Kind.BAD_ATTRIBUTE, f"there is no activation {name!r}")
        assert entry is not None
        alpha = next(alphas, entry[0]) if entry[0] is not None else None
        beta = next(betas, entry[1]) if entry[1] is not None else None
        found.append(lambda x, function=entry[2], a=alpha, b=beta: function(x, a, b))
    each = len(defaults)
    return [found[n * each : (n + 1) * each] for n in range(directions)]


@dataclass(frozen=True, eq=False)
class Inputs:
    """The inputs that all three share, time first."""

    x: Tensor  # [time, batch, input]
    w: Tensor  # [directions, gates * hidden, input]
    r: Tensor  # [directions, gates * hidden, hidden]
    b: Tensor | None  # [directions, 2 * gates * hidden]
    lengths: Tensor | None  # [batch]
    clip: float | None
    hidden: int
    directions: tuple[bool, ...]  # whether each runs backwards

    @property
    def batch(self) -> Dim:
        return self.x.shape[1]

    def state(self, op: Call, given: Tensor | None, direction: int) -> Any:
        """The initial state of a direction: [batch, hidden]."""
        if given is None:
            return op.constant(np.zeros((), self.x.dtype.numpy)).broadcast_to((self.batch, self.hidden))
        return (given.swapaxes(0, 1) if op.get("layout", 0) else given)[direction]

    def limited(self, gate: Any) -> Any:
        return gate if self.clip is None else gate.clip(-self.clip, self.clip)

    def mask(self, op: Call) -> list[Any]:
        """[time, batch, 1] and [time]: whether a sequence still lasts, and whether any does; nothing when all are as long
        as the axis."""
        if self.lengths is None or self.batch == 0:
            return []
        time, lengths = self.x.shape[0], self.lengths.cast(i64)
        times = Tensor(op.trace, op.trace.emit(Iota((time, self.batch, 1), 0)))
        each = Tensor(op.trace, op.trace.emit(Iota((time,), 0)))
        return [times < lengths.reshape(1, self.batch, 1), each < self.longest()]

    def longest(self) -> Any:
        assert self.lengths is not None
        return self.lengths.cast(i64).reduce("max", (0,))

    def projected(self, op: Call, direction: int) -> Any:
        """The products of all times with the weight of the inputs. Times after the end of every sequence are not looked
        at, so the products of a quarter will do where that is the longest."""
        x, w = self.x, self.w[direction]
        time = x.shape[0]
        some = symbolic.ceildiv(time, 4)
        if self.lengths is None or self.batch == 0 or (isinstance(time, int) and time < FEW_TIMES):
            return contract(x, "tbi", w, "gi", "tbg")

        def short(x: Any, w: Any) -> Any:
            made = contract(x[:some], "tbi", w, "gi", "tbg")
            return concat([made, made.full((time - some, *made.shape[1:]), 0)], 0)

        def whole(x: Any, w: Any) -> Any:
            return contract(x, "tbi", w, "gi", "tbg")

        return functions.cond(self.longest() <= op.dimension(some, i64), short, whole, x, w)


def _inputs(op: Call, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None, lengths: Tensor | None) -> Inputs:
    direction = op.choice("direction", "forward", ("forward", "reverse", "bidirectional"))
    directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]
    op.require(w.shape[0] == len(directions), Kind.BAD_SHAPE, f"{direction} does not fit the weight {w.type!r}")
    hidden = op.get("hidden_size", r.shape[-1])
    if op.get("layout", 0):
        x = x.swapaxes(0, 1)
    return Inputs(x, w, r, b, lengths, op.get("clip", None), hidden, directions)


def _product(x: Any, weight: Any, direction: int) -> Any:
    outer = "tb"[-(x.rank - 1) :]
    return contract(x, f"{outer}i", weight[direction], "gi", f"{outer}g")


def _parts(x: Any, count: int, size: int) -> list[Any]:
    """Equal parts of the last axis."""
    return [x[..., n * size : (n + 1) * size] for n in range(count)]


def _run(
    op: Call, given: Inputs, step: Callable[..., Any], states: Sequence[Any], xs: Any, backwards: bool
) -> tuple[Any, list[Any]]:
    """Scan `step(x, *states) -> states` over time; the first state is the output. Ended sequences stand still, and once
    all have ended nothing is computed."""
    masks = given.mask(op)

    def stepped(data: Any, last: Any, *carry: Any) -> list[Any]:
        new = step(data, *carry)
        return [*(last.where(n, old) for n, old in zip(new, carry, strict=True)), last.where(new[0], 0)]

    def ended(data: Any, last: Any, *carry: Any) -> list[Any]:
        return [*carry, carry[0].full_like(0)]

    def body(carry: Any, x: Any) -> Any:
        if not masks:
            new = step(x[0], *carry)
            return list(new), new[0]
        data, last, lasts_any = x
        *kept, y = functions.cond(lasts_any, stepped, ended, data, last, *carry)
        return kept, y

    final, ys = functions.scan(body, list(states), [xs, *masks], reverse=backwards)
    return ys, list(final)


def _results(op: Call, outputs: list[Any], finals: list[list[Any]]) -> tuple[Any, ...]:
    """[time, directions, batch, hidden] and the last states, or batch first."""
    y = stack(outputs, 1)
    last = [stack([state[n] for state in finals], 0) for n in range(len(finals[0]))]
    if op.get("layout", 0):
        y = y.transpose((2, 0, 1, 3))
        last = [state.transpose((1, 0, 2)) for state in last]
    return y, *last


@onnx_op("RNN", ranks=RANKS)
def rnn(
    op: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    initial: Tensor | None = None,
) -> Any:
    given = _inputs(op, x, w, r, b, lengths)
    chosen = _activations(op, ("Tanh",), len(given.directions))
    outputs, finals = [], []
    for n, backwards in enumerate(given.directions):
        projected = given.projected(op, n)
        if b is not None:
            projected = projected + b[n][: given.hidden] + b[n][given.hidden :]
        recurrent, (f,) = r[n], chosen[n]

        def step(data: Any, h: Any, recurrent: Any = recurrent, f: Activation = f) -> Any:
            return [f(given.limited(data + contract(h, "bh", recurrent, "gh", "bg")))]

        y, final = _run(op, given, step, [given.state(op, initial, n)], projected, backwards)
        outputs.append(y)
        finals.append(final)
    return _results(op, outputs, finals)


@onnx_op("GRU", ranks=RANKS)
def gru(
    op: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    initial: Tensor | None = None,
) -> Any:
    given = _inputs(op, x, w, r, b, lengths)
    chosen = _activations(op, ("Sigmoid", "Tanh"), len(given.directions))
    linear = bool(op.get("linear_before_reset", 0)) and op.version >= 3
    h3 = 3 * given.hidden
    outputs, finals = [], []
    for n, backwards in enumerate(given.directions):
        projected = given.projected(op, n)
        bias = None if b is None else b[n]
        if bias is not None:
            projected = projected + bias[:h3]
        step = _gru_step(given, r[n], None if bias is None else bias[h3:], chosen[n], linear)
        y, final = _run(op, given, step, [given.state(op, initial, n)], projected, backwards)
        outputs.append(y)
        finals.append(final)
    return _results(op, outputs, finals)


def _gru_step(
    given: Inputs, recurrent: Any, bias: Any, chosen: Sequence[Activation], linear: bool
) -> Callable[..., Any]:
    f, g = chosen
    size = given.hidden

    def step(data: Any, h: Any) -> Any:
        xz, xr, xh = _parts(data, 3, size)
        gates = contract(h, "bh", recurrent[: 2 * size], "gh", "bg")
        rz, rr = _parts(gates, 2, size)
        if bias is not None:
            rz, rr = rz + bias[:size], rr + bias[size : 2 * size]
        z, reset = f(given.limited(xz + rz)), f(given.limited(xr + rr))
        candidate = recurrent[2 * size :]
        if linear:
            product = contract(h, "bh", candidate, "gh", "bg")
            rh = reset * (product if bias is None else product + bias[2 * size :])
        else:
            product = contract(reset * h, "bh", candidate, "gh", "bg")
            rh = product if bias is None else product + bias[2 * size :]
        new = g(given.limited(xh + rh))
        return [(1 - z) * new + z * h]

    return step


@onnx_op("LSTM", ranks={**RANKS, 6: 3, 7: 2})
def lstm(
    op: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    peepholes: Tensor | None = None,
    product: Product | None = None,
) -> Any:
    """`product` multiplies the inputs of all times with a weight, and the state of each time; by default a contraction."""
    given = _inputs(op, x, w, r, b, lengths)
    multiply = product or _product
    chosen = _activations(op, ("Sigmoid", "Tanh", "Tanh"), len(given.directions))
    h4 = 4 * given.hidden
    outputs, finals = [], []
    for n, backwards in enumerate(given.directions):
        projected = given.projected(op, n) if product is None else product(given.x, w, n)
        if b is not None:
            projected = projected + (b[n][:h4] + b[n][h4:])
        looks = None if peepholes is None else _parts(peepholes[n], 3, given.hidden)
        recurrent = partial(multiply, weight=r, direction=n)
        step = _lstm_step(given, recurrent, looks, chosen[n], bool(op.get("input_forget", 0)))
        states = [given.state(op, initial_h, n), given.state(op, initial_c, n)]
        y, final = _run(op, given, step, states, projected, backwards)
        outputs.append(y)
        finals.append(final)
    return _results(op, outputs, finals)


def _lstm_step(
    given: Inputs, recurrent: Callable[[Any], Any], looks: Any, chosen: Sequence[Activation], coupled: bool
) -> Callable[..., Any]:
    f, g, h_activation = chosen

    def step(data: Any, h: Any, c: Any) -> Any:
        i, o, forget, new = _parts(data + recurrent(h), 4, given.hidden)
        if looks is not None:
            i, forget = i + looks[0] * c, forget + looks[2] * c
        i = f(given.limited(i))
        forget = 1 - i if coupled else f(given.limited(forget))
        cell = forget * c + i * g(given.limited(new))
        o = f(given.limited(o if looks is None else o + looks[1] * cell))
        return [o * h_activation(cell), cell]

    return step
