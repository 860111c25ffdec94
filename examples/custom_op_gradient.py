"""Give a function a gradient of your own.

Three reasons to do so: rounding has no useful slope (a network with four-valued weights is trained all the same);
a formula is right but its derivative is not a number somewhere; and gradients that are to be reversed or clipped
on their way. Each is checked against what it should be.
Run it with `python examples/custom_op_gradient.py`.
"""

import argparse

import numpy as np

import ingot
from ingot import nn, optim


def rounded(x):
    """x in steps of 2/3 between -1 and 1; the gradient passes as if nothing had been rounded."""

    def forward(x):
        return ((x.clip(-1.0, 1.0) + 1.0) * 1.5).round() / 1.5 - 1.0

    def backward(xs, y, g):
        return (g,)  # the "straight-through" estimator (Bengio et al., 2013)

    return ingot.custom_gradient(forward, backward)(x)


def length(x):
    """sqrt(sum(x^2)), whose slope at 0 is taken as 0 instead of 0/0."""

    def backward(xs, y, g):
        (x,) = xs
        return ((y > 0).where(x * g / y.clip(low=1e-30), 0.0),)

    return ingot.custom_gradient(lambda x: (x * x).sum().sqrt(), backward)(x)


def reversed_gradient(x):
    """x itself; on the way back the sign changes (Ganin and Lempitsky, 2015)."""
    return ingot.custom_gradient(lambda x: x * 1.0, lambda xs, y, g: (-g,))(x)


class FourValued(nn.Module):
    """A dense layer that computes with rounded weights and trains the others."""

    def __init__(self, inputs: int, outputs: int):
        self.weight = nn.initializers.uniform(0.5)((inputs, outputs), np.random.default_rng(0))
        self.scale = np.ones(outputs, np.float32)

    def forward(self, x):
        return (x @ rounded(ingot.asarray(self.weight, like=x))) * self.scale


def train_four_valued(steps: int) -> tuple[float, float, np.ndarray]:
    """Fit points of a circle against points outside it; the first and the last loss, and the weights used."""
    generator = np.random.default_rng(1)
    points = generator.uniform(-1, 1, (256, 2)).astype(np.float32)
    inside = ((points**2).sum(axis=1) < 0.5).astype(np.float32)
    model = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), FourValued(24, 24), nn.Tanh(), FourValued(24, 1))

    def loss(model, x, y):
        return nn.binary_cross_entropy_with_logits(model(x)[:, 0], y)

    trainer = ingot.Trainer(model, loss, optim.Adam(0.02), points, inside)
    losses = [trainer.step(points, inside) for _ in range(steps)]
    return losses[0], losses[-1], ingot.compile(rounded, ingot.f32[24, 24])(trainer.model[2].weight)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    steps = 150 if parser.parse_args().quick else 500

    x = np.array([-1.2, -0.4, 0.1, 0.9], np.float32)
    print("rounded  ", x, "->", ingot.jit(rounded)(x).round(3))
    print("its slope", ingot.grad(lambda x: rounded(x).sum())(x))

    plain = ingot.grad(lambda x: (x * x).sum().sqrt())
    for point in (np.array([3, 4], np.float32), np.zeros(2, np.float32)):
        print(
            f"slope of the length at {point}: {ingot.grad(length)(point)} (without a rule of its own: {plain(point)})"
        )

    ahead, back = (ingot.grad(lambda x, f=f: f(x.sin()).sum())(x) for f in (lambda y: y, reversed_gradient))
    print("gradient, reversed gradient:", ahead.round(3), back.round(3))
    assert np.array_equal(ahead, -back)

    first, last, weights = train_four_valued(steps)
    print(f"a network of weights {np.unique(weights.round(3))} learnt a circle: loss {first:.3f} -> {last:.3f}")
    assert last < 0.5 * first


if __name__ == "__main__":
    main()
