"""Which pixels made it a 3? The gradient of an answer with respect to the image.

Gradients are not only for weights: here the score of the recognised digit is differentiated with respect to the
input. The pixels with the largest slopes are then greyed out, and the score falls much more than when as many
pixels are greyed out at random.
Run it with `python examples/saliency.py`.
"""

import argparse
from pathlib import Path

import numpy as np

import ingot
from ingot import data, nn, optim

DATA = Path(__file__).parent / "data" / "digits.npz"
ERASED = 8  # pixels of 64


def build_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.SiLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(192, 48), nn.SiLU(),
        nn.Linear(48, 10),
    )  # fmt: skip


def confidence(model, images):
    """How far the best score is above the mean of all, for each image, and which digit it is."""
    scores = model(images)
    return scores.max(axis=1) - scores.mean(axis=1), scores.argmax(axis=1)


def sensitivity(model):
    """Compiled: for images the confidence, the digit, and the slope of the confidence in every pixel."""

    def function(images):
        def total(images):
            sure, digit = confidence(model, images)
            return sure.sum(), (sure, digit)

        (_, (sure, digit)), slopes = ingot.value_and_grad(total, has_aux=True)(images)
        return sure, digit, slopes

    return ingot.compile(function, ingot.f32["batch", 1, 8, 8])


def erased(images: np.ndarray, importance: np.ndarray) -> np.ndarray:
    """Images whose most important pixels are grey."""
    flat = images.reshape(len(images), -1).copy()
    chosen = np.argsort(-importance.reshape(len(images), -1), axis=1)[:, :ERASED]
    np.put_along_axis(flat, chosen, flat.mean(), axis=1)
    return flat.reshape(images.shape)


def beside(image: np.ndarray, importance: np.ndarray) -> str:
    shades = " .:-=+*#%@"

    def line(row: np.ndarray, most: float) -> str:
        return "".join(2 * shades[min(int(v / most * 10), 9)] for v in row)

    return "\n".join(
        f"    {line(pixels, 1.0)}   |   {line(slopes, importance.max())}"
        for pixels, slopes in zip(image[0], importance[0], strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two epochs only")
    epochs = 2 if parser.parse_args().quick else 10

    with np.load(DATA) as file:
        images, labels = file["images"][:, None].astype(np.float32) / 16, file["labels"]
    (train, train_labels), (test, _) = data.split(images, labels, test=0.2, seed=1)

    def loss(model, x, y):
        return nn.cross_entropy(model(x), y)

    trainer = ingot.Trainer(build_model(), loss, optim.Adam(3e-3), ingot.f32["batch", 1, 8, 8], ingot.i64["batch"])
    trainer.fit(data.Batches(train, train_labels, size=32, epochs=epochs), title="training")

    look = sensitivity(trainer.model)
    sure, digit, slopes = look(test)
    importance = np.abs(slopes)
    for number in range(3):
        print(f"seen as {digit[number]}: the image, and where its score is sensitive")
        print(f"{beside(test[number], importance[number])}\n")

    generator = np.random.default_rng(0)
    at_random = look(erased(test, generator.random(test.shape)))[0]
    important = look(erased(test, importance))[0]
    print(f"confidence, mean of {len(test)} images:        {sure.mean():.2f}")
    print(f"with {ERASED} pixels greyed at random:          {at_random.mean():.2f}")
    print(f"with the {ERASED} most sensitive pixels greyed: {important.mean():.2f}")
    assert sure.mean() - important.mean() > 1.5 * (sure.mean() - at_random.mean())


if __name__ == "__main__":
    main()
