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


def score(weights, x):
    """Above 0: the second spiral."""
    hidden = (x @ weights["w1"] + weights["b1"]).tanh()
    hidden = (hidden @ weights["w2"] + weights["b2"]).tanh()
    return (hidden @ weights["w3"] + weights["b3"])[:, 0]


def loss(weights, x, label):
    """Cross-entropy of a yes-or-no question: softplus(s) - label * s."""
    s = score(weights, x)
    return (s.softplus() - label * s).mean()


@ingot.jit
def step(weights, x, label):
    """One step of gradient descent: the loss, and the new weights. All of it becomes one program."""
    value, slopes = ingot.value_and_grad(loss)(weights, x, label)
    return value, {name: weights[name] - RATE * slopes[name] for name in weights}


def draw(ask) -> str:
    across, down = np.meshgrid(np.linspace(-1.1, 1.1, 56), np.linspace(1.1, -1.1, 24))
    answers = ask(np.stack([across, down], axis=-1).reshape(-1, 2).astype(np.float32)).reshape(across.shape)
    return "\n".join("".join("#" if s > 0 else "." for s in line) for line in answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    steps = 1500 if parser.parse_args().quick else 4000

    generator = np.random.default_rng(0)
    x, label = spirals(400, generator)
    shapes = {"w1": (2, WIDTH), "b1": (WIDTH,), "w2": (WIDTH, WIDTH), "b2": (WIDTH,), "w3": (WIDTH, 1), "b3": (1,)}
    weights = {name: (generator.standard_normal(s) * 0.5).astype(np.float32) for name, s in shapes.items()}
    for number in range(steps + 1):
        value, weights = step(weights, x, label)
        if number % (steps // 4) == 0:
            print(f"step {number:5}   loss {float(value):.4f}")

    # Inference is the same function with the weights built in, for any number of points.
    classify = ingot.compile(lambda x: score(weights, x), ingot.f32["points", 2])
    fresh, truth = spirals(1000, generator)
    right = ((classify(fresh) > 0) == truth).mean()
    print(f"right about {right:.1%} of points it has not seen\n")
    print(draw(classify))
    assert right > 0.9, "the spirals were not told apart"


if __name__ == "__main__":
    main()
