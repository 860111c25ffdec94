"""A neural network by hand: plain arrays, a plain function, its gradient, and a training step of your own.

No layers and no trainer: what `nn` and `Trainer` do is written out here. Two spirals are told apart; at the end
the network's opinion of the whole plane is drawn, which should show two arms around each other.
Run it with `python examples/mlp.py`.
"""

import argparse

import numpy as np

import ingot

WIDTH, RATE = 32, 0.3


def spirals(count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Points of two spirals, and which of the two each belongs to (0 or 1)."""
    label = np.arange(count) % 2
    turn = np.sqrt(generator.uniform(0.02, 1.0, count)) * 2.5 * np.pi
    angle = turn + np.pi * label
    points = np.stack([turn * np.cos(angle), turn * np.sin(angle)], axis=1) / (2.5 * np.pi)
    points += generator.normal(0, 0.02, points.shape)
    return points.astype(np.float32), label.astype(np.float32)


def score(x, w1, b1, w2, b2, w3, b3):
    """Above 0: the second spiral."""
    hidden = (x @ w1 + b1).tanh()
    hidden = (hidden @ w2 + b2).tanh()
    return (hidden @ w3 + b3)[:, 0]


def loss(weights, x, label):
    """Cross-entropy of a yes-or-no question: softplus(s) - label * s."""
    s = score(x, *weights)
    return (s.softplus() - label * s).mean()


def step(x, label, *weights):
    """One step of gradient descent: the loss, and the new weights."""
    value, slopes = ingot.value_and_grad(loss)(weights, x, label)
    return value, *(weight - RATE * slope for weight, slope in zip(weights, slopes, strict=True))


def draw(ask) -> str:
    across, down = np.meshgrid(np.linspace(-1.1, 1.1, 56), np.linspace(1.1, -1.1, 24))
    answers = ask(np.stack([across, down], axis=-1).reshape(-1, 2).astype(np.float32)).reshape(across.shape)
    return "\n".join("".join("#" if s > 0 else "." for s in line) for line in answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    steps = 1500 if parser.parse_args().quick else 4000

    generator = np.random.default_rng(0)
    x, label = spirals(400, generator)
    shapes = [(2, WIDTH), (WIDTH,), (WIDTH, WIDTH), (WIDTH,), (WIDTH, 1), (1,)]
    weights = [(generator.standard_normal(s) * 0.5).astype(np.float32) for s in shapes]

    # The whole step, gradient and all, becomes one program.
    train = ingot.compile(step, x, label, *weights)
    for number in range(steps + 1):
        value, *weights = train(x, label, *weights)
        if number % (steps // 4) == 0:
            print(f"step {number:5}   loss {float(value):.4f}")

    classify = ingot.compile(score, ingot.f32["points", 2], *(ingot.f32[s] for s in shapes))
    fresh, truth = spirals(1000, generator)
    right = ((classify(fresh, *weights) > 0) == truth).mean()
    print(f"right about {right:.1%} of points it has not seen\n")
    print(draw(lambda points: classify(points, *weights)))
    assert right > 0.9, "the spirals were not told apart"


if __name__ == "__main__":
    main()
