"""Optimisers: how a parameter changes, given its gradient. Traced like everything else, so that an update is
part of the compiled step and all parameters are updated in one pass over memory.

An optimiser has slots per parameter (`initial`) and one update rule (`update`) written with tensors. A
learning rate is a number or a function of the step number (a tensor, from 0).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ingot.compiler.ir.types import DType, f32
from ingot.frontends.dsl.tensor import Tensor

Schedule = Callable[[Any], Any]
Slots = dict[str, Any]


class Optimizer(ABC):
    """`clip_norm` scales all gradients down together when their Euclidean norm is larger; `clip_value`
    limits each component."""

    def __init__(
        self, learning_rate: float | Schedule, clip_norm: float | None = None, clip_value: float | None = None
    ) -> None:
        self.learning_rate = learning_rate
        self.clip_norm = clip_norm
        self.clip_value = clip_value

    @abstractmethod
    def initial(self, parameter: np.ndarray) -> dict[str, np.ndarray]:
        """The slots of a parameter before the first step."""

    def shared(self, rate: Any, step: Any) -> tuple[Any, Any]:
        """The last two arguments of `update`, made of what would be given there: what is the same for all parameters
        is traced once."""
        return rate, step

    @abstractmethod
    def update(self, parameter: Any, gradient: Any, slots: Slots, rate: Any, step: Any) -> tuple[Any, Slots]:
        """The new parameter and slots; `rate` and `step` (1 at the first update) are scalar tensors."""

    def apply(
        self, parameters: Mapping[str, Any], gradients: Mapping[str, Any], slots: Mapping[str, Slots], count: Any
    ) -> tuple[dict[str, Any], dict[str, Slots]]:
        """Every parameter updated; `count` is the number of updates done so far."""
        gradients = self._clipped(gradients)
        rates: dict[DType, tuple[Any, Any]] = {}
        new_parameters, new_slots = {}, {}
        for name, parameter in parameters.items():
            dtype = parameter.dtype.compute
            if dtype not in rates:
                rates[dtype] = self.shared(self._rate(count, dtype), (count + 1).astype(dtype))
            rate, step = rates[dtype]
            wide, gradient = parameter.cast(dtype), gradients[name].cast(dtype)
            changed, kept = self.update(wide, gradient, dict(slots[name]), rate, step)
            new_parameters[name] = changed.cast(parameter.dtype)
            new_slots[name] = kept
        return new_parameters, new_slots

    def _rate(self, count: Any, dtype: DType) -> Any:
        rate = self.learning_rate
        if callable(rate):
            made = rate(count.astype(dtype))
            return made.astype(dtype) if isinstance(made, Tensor) else count.constant(made, dtype)
        return count.constant(rate, dtype)

    def _clipped(self, gradients: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.clip_value is not None:
            gradients = {n: g.clip(-self.clip_value, self.clip_value) for n, g in gradients.items()}
        if self.clip_norm is None:
            return gradients
        squares = [(g.cast(f32) * g.cast(f32)).sum() for g in gradients.values()]
        total = squares[0]
        for square in squares[1:]:
            total = total + square
        norm = total.sqrt()
        scale = (self.clip_norm / (norm + 1e-6)).clip(high=1.0)
        return {n: g * scale.cast(g.dtype) for n, g in gradients.items()}


class SGD(Optimizer):
    """w -= rate * v, with v = momentum * v + g. `nesterov` looks ahead: w -= rate * (g + momentum * v).
    `weight_decay` adds decay * w to the gradient."""

    def __init__(
        self,
        learning_rate: float | Schedule,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        **clip: Any,
    ) -> None:
        super().__init__(learning_rate, **clip)
        if nesterov and not momentum:
            raise ValueError("SGD: nesterov needs a momentum")
        self.momentum = momentum
        self.nesterov = nesterov
        self.weight_decay = weight_decay

    def initial(self, parameter: np.ndarray) -> dict[str, np.ndarray]:
        return {"velocity": np.zeros(parameter.shape, parameter.dtype)} if self.momentum else {}

    def update(self, parameter: Any, gradient: Any, slots: Slots, rate: Any, step: Any) -> tuple[Any, Slots]:
        if self.weight_decay:
            gradient = gradient + self.weight_decay * parameter
        if not self.momentum:
            return parameter - rate * gradient, {}
        velocity = self.momentum * slots["velocity"] + gradient
        direction = gradient + self.momentum * velocity if self.nesterov else velocity
        return parameter - rate * direction, {"velocity": velocity}


class _Corrected(NamedTuple):
    """Scalars of a step of Adam."""

    scale: Any  # of the mean: the rate, corrected for a mean that began at 0
    root: Any  # what roots of squares are corrected by
    kept: Any  # of the weight, where it decays by itself; None otherwise


class Adam(Optimizer):
    """Kingma and Ba, 2015. `weight_decay` adds decay * w to the gradient (AdamW decays the weight itself)."""

    decoupled = False

    def __init__(
        self,
        learning_rate: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        **clip: Any,
    ) -> None:
        super().__init__(learning_rate, **clip)
        self.betas = betas
        self.epsilon = epsilon
        self.weight_decay = weight_decay
        self.amsgrad = amsgrad

    def initial(self, parameter: np.ndarray) -> dict[str, np.ndarray]:
        names = ("mean", "square", "largest") if self.amsgrad else ("mean", "square")
        return {name: np.zeros(parameter.shape, parameter.dtype) for name in names}

    def shared(self, rate: Any, step: Any) -> tuple[_Corrected, Any]:
        first, second = self.betas
        # beta^t as exp(t log beta): scalars, computed once a step
        mean_correction = 1.0 - (step * math.log(first)).exp() if first else step.full_like(1.0)
        square_correction = 1.0 - (step * math.log(second)).exp() if second else step.full_like(1.0)
        decays = self.weight_decay and self.decoupled
        kept = 1.0 - rate * self.weight_decay if decays else None
        return _Corrected(rate / mean_correction, square_correction.rsqrt(), kept), step

    def update(self, parameter: Any, gradient: Any, slots: Slots, rate: _Corrected, step: Any) -> tuple[Any, Slots]:
        first, second = self.betas
        if self.weight_decay and not self.decoupled:
            gradient = gradient + self.weight_decay * parameter
        mean = first * slots["mean"] + (1 - first) * gradient
        square = second * slots["square"] + (1 - second) * gradient * gradient
        kept = {"mean": mean, "square": square}
        if self.amsgrad:
            square = kept["largest"] = slots["largest"].binary("maximum", square)
        if rate.kept is not None:
            parameter = parameter * rate.kept
        return parameter - rate.scale * mean / (square.sqrt() * rate.root + self.epsilon), kept


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    decoupled = True

    def __init__(self, learning_rate: float | Schedule = 1e-3, weight_decay: float = 1e-2, **keywords: Any) -> None:
        super().__init__(learning_rate, weight_decay=weight_decay, **keywords)


class RMSProp(Optimizer):
    """w -= rate * g / (sqrt(average of g^2) + epsilon)"""

    def __init__(
        self,
        learning_rate: float | Schedule = 1e-2,
        decay: float = 0.99,
        epsilon: float = 1e-8,
        momentum: float = 0.0,
        **clip: Any,
    ) -> None:
        super().__init__(learning_rate, **clip)
        self.decay, self.epsilon, self.momentum = decay, epsilon, momentum

    def initial(self, parameter: np.ndarray) -> dict[str, np.ndarray]:
        names = ("square", "velocity") if self.momentum else ("square",)
        return {name: np.zeros(parameter.shape, parameter.dtype) for name in names}

    def update(self, parameter: Any, gradient: Any, slots: Slots, rate: Any, step: Any) -> tuple[Any, Slots]:
        square = self.decay * slots["square"] + (1 - self.decay) * gradient * gradient
        change = gradient / (square.sqrt() + self.epsilon)
        if not self.momentum:
            return parameter - rate * change, {"square": square}
        velocity = self.momentum * slots["velocity"] + change
        return parameter - rate * velocity, {"square": square, "velocity": velocity}


class Adagrad(Optimizer):
    """w -= rate * g / (sqrt(sum of g^2) + epsilon) (Duchi et al., 2011)"""

    def __init__(self, learning_rate: float | Schedule = 1e-2, epsilon: float = 1e-10, **clip: Any) -> None:
        super().__init__(learning_rate, **clip)
        self.epsilon = epsilon

    def initial(self, parameter: np.ndarray) -> dict[str, np.ndarray]:
        return {"total": np.zeros(parameter.shape, parameter.dtype)}

    def update(self, parameter: Any, gradient: Any, slots: Slots, rate: Any, step: Any) -> tuple[Any, Slots]:
        total = slots["total"] + gradient * gradient
        return parameter - rate * gradient / (total.sqrt() + self.epsilon), {"total": total}


# --- learning rates as functions of the step ------------------------------------------------------


def cosine(rate: float, steps: int, warmup: int = 0, final: float = 0.0) -> Schedule:
    """Linear warm-up, then half a cosine down to `final`."""

    def schedule(step: Any) -> Any:
        progress = ((step - warmup) / max(1, steps - warmup)).clip(0.0, 1.0)
        falling = final + 0.5 * (rate - final) * (1.0 + (progress * math.pi).cos())
        return (step < warmup).where((step + 1.0) * (rate / max(1, warmup)), falling) if warmup else falling

    return schedule


def step_decay(rate: float, every: int, factor: float = 0.1) -> Schedule:
    """The rate times `factor` after each `every` steps."""
    return lambda step: rate * ((step / every).floor() * math.log(factor)).exp()


def piecewise(boundaries: Sequence[int], rates: Sequence[float]) -> Schedule:
    """rates[n] from boundaries[n-1] on."""

    def schedule(step: Any) -> Any:
        rate = step.full_like(rates[-1])
        for boundary, value in reversed(list(zip(boundaries, rates, strict=False))):
            rate = (step < boundary).where(step.full_like(value), rate)
        return rate

    return schedule
