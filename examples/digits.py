"""Train a small convolutional network on 1797 scanned digits, in native code, and test it.

Run it with `make demo`, or `python examples/digits.py`. Each step (forward, backward, Adam) is one call of
machine code that Ingot generated for this model.
"""

import argparse
import time
from pathlib import Path

import numpy as np

import ingot
from ingot import data, nn, optim

DATA = Path(__file__).parent / "data" / "digits.npz"


def build_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def loss(model, images, labels):
    return nn.cross_entropy(model(images), labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="two epochs only")
    arguments = parser.parse_args()
    epochs = 2 if arguments.quick else arguments.epochs

    with np.load(DATA) as file:
        images, labels = file["images"][:, None].astype(np.float32) / 16, file["labels"]
    (train_x, train_y), (test_x, test_y) = data.split(images, labels, test=0.2, seed=1)

    model = build_model()
    started = time.perf_counter()
    trainer = ingot.Trainer(model, loss, optim.Adam(2e-3), ingot.f32["batch", 1, 8, 8], ingot.i64["batch"])
    print(f"compiled the training step in {time.perf_counter() - started:.2f} s")

    started = time.perf_counter()
    batches = data.Batches(train_x, train_y, size=32, epochs=epochs)
    losses = trainer.fit(batches, title="digits")
    print(f"{len(batches)} steps in {time.perf_counter() - started:.2f} s, last loss {losses[-1]:.4f}")

    classify = ingot.compile(trainer.model, ingot.f32["batch", 1, 8, 8])
    accuracy = float((classify(test_x).argmax(axis=1) == test_y).mean())
    print(f"accuracy on {len(test_y)} digits it has not seen: {accuracy:.1%}")


if __name__ == "__main__":
    main()
