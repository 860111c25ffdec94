"""LeNet-5, the network that read cheques in 1998, on 1797 scanned digits (LeCun et al., 1998).

Trains with a learning rate that falls, watches the accuracy on digits it has not seen, and ends with a table of
which digits it takes for which: nearly everything should be on the diagonal.
Run it with `python examples/lenet.py`.
"""

import argparse
from pathlib import Path

import numpy as np

import ingot
from ingot import data, nn, optim

DATA = Path(__file__).parent / "data" / "digits.npz"
IMAGES = ingot.f32["batch", 1, 16, 16]


class LeNet(nn.Module):
    def __init__(self):
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Linear(64, 84), nn.Tanh(), nn.Linear(84, 10))

    def forward(self, image):
        return self.classifier(self.features(image))


def loss(model, images, labels):
    """The loss, and the accuracy on the batch as something to report beside it."""
    scores = model(images)
    right = (scores.argmax(axis=1) == labels).astype(ingot.f32)
    return nn.cross_entropy(scores, labels, label_smoothing=0.05), {"accuracy": right.mean()}


def digits() -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Training and test images, enlarged to 16 x 16 pixels, with their labels."""
    with np.load(DATA) as file:
        images, labels = file["images"], file["labels"]
    larger = images.repeat(2, axis=1).repeat(2, axis=2)[:, None].astype(np.float32) / 16
    return data.split(larger, labels, test=0.2, seed=1)


def confusion(truth: np.ndarray, guess: np.ndarray) -> str:
    counts = np.zeros((10, 10), int)
    np.add.at(counts, (truth, guess), 1)
    lines = ["is \\ seen as " + "".join(f"{n:4}" for n in range(10))]
    lines += [f"{n:12} " + "".join(f"{c:4}" if c else "   ." for c in row) for n, row in enumerate(counts)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="three epochs only")
    epochs = 3 if parser.parse_args().quick else 15

    (images, labels), (test_images, test_labels) = digits()
    per_epoch = len(data.Batches(images, labels, size=32))
    rate = optim.cosine(4e-3, steps=epochs * per_epoch, warmup=20)
    trainer = ingot.Trainer(LeNet(), loss, optim.AdamW(rate), IMAGES, ingot.i64["batch"])
    for epoch in range(epochs):
        rights = []
        for batch in data.Batches(images, labels, size=32, seed=epoch):
            value, metrics = trainer.step(*batch)
            rights.append(float(metrics["accuracy"]))
        print(f"epoch {epoch + 1:2}   loss {value:.3f}   right while training {np.mean(rights):.1%}")

    classify = ingot.compile(trainer.model, IMAGES)
    guesses = classify(test_images).argmax(axis=1)
    accuracy = float((guesses == test_labels).mean())
    print(f"\nright about {accuracy:.1%} of {len(test_labels)} digits it has not seen\n")
    print(confusion(test_labels, guesses))
    assert accuracy > 0.85, "this network usually does better"


if __name__ == "__main__":
    main()
