"""A variational autoencoder squeezes digits through four numbers, and dreams new ones (Kingma and Welling, 2014).

The model draws random numbers inside the compiled step: its key is a buffer, so every step draws anew, and a run
can be repeated bit by bit. At the end you see digits beside what is left of them, and digits that never were.
Run it with `python examples/vae_digits.py`.
"""

import argparse
from pathlib import Path

import numpy as np

import ingot
from ingot import data, nn, optim, random

DATA = Path(__file__).parent / "data" / "digits.npz"
PIXELS, HIDDEN, CODE = 64, 96, 4


class Autoencoder(nn.Module):
    def __init__(self):
        self.encoder = nn.Sequential(nn.Linear(PIXELS, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, 2 * CODE))
        self.decoder = nn.Sequential(nn.Linear(CODE, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, PIXELS))
        self.key = nn.Buffer(random.key(0))

    def encode(self, pixels):
        """The mean and the logarithm of the variance of the code."""
        both = self.encoder(pixels)
        return both[:, :CODE], both[:, CODE:]

    def forward(self, pixels):
        """The most likely digit again (as logits of brightness)."""
        return self.decoder(self.encode(pixels)[0])

    def noise(self, shape):
        drawn = random.normal(self.key, shape)
        self.key = random.advance(self.key)
        return drawn


def loss(model, pixels):
    """How badly digits come back, plus how far the codes are from standard normal ones, per image."""
    mean, log_variance = model.encode(pixels)
    code = mean + (0.5 * log_variance).exp() * model.noise(mean.shape)
    logits = model.decoder(code)
    worse = nn.binary_cross_entropy_with_logits(logits, pixels, reduction="none").sum(axis=1).mean()
    farther = -0.5 * (1.0 + log_variance - mean * mean - log_variance.exp()).sum(axis=1).mean()
    return worse + farther, {"reconstruction": worse, "divergence": farther}


def drawn(images: np.ndarray) -> str:
    """8 x 8 images beside each other, two letters a pixel."""
    shades = np.array(list(" .:-=+*#%@"))
    letters = shades[(images.reshape(-1, 8, 8).clip(0, 0.999) * len(shades)).astype(int)]
    return "\n".join("   ".join("".join(np.repeat(row, 2)) for row in line) for line in letters.transpose(1, 0, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer epochs")
    epochs = 8 if parser.parse_args().quick else 40

    with np.load(DATA) as file:
        images = file["images"].reshape(-1, PIXELS).astype(np.float32) / 16
    (train,), (test,) = data.split(images, test=0.1, seed=0)
    trainer = ingot.Trainer(Autoencoder(), loss, optim.Adam(3e-3), ingot.f32["batch", PIXELS])
    for epoch in range(epochs):
        for (batch,) in data.Batches(train, size=64, seed=epoch):
            value, parts = trainer.step(batch)
        if epoch % (epochs // 4) == 0 or epoch == epochs - 1:
            split = ", ".join(f"{name} {float(part):.2f}" for name, part in parts.items())
            print(f"epoch {epoch + 1:3}   loss {value:.2f}   ({split})")

    model = trainer.model
    again = ingot.compile(lambda x: model(x).sigmoid(), ingot.f32["batch", PIXELS])
    dream = ingot.compile(lambda key: model.decoder(random.normal(key, (6, CODE))).sigmoid(), ingot.u64[2])
    print(
        f"\ndigits it has not seen:\n{drawn(test[:6])}\n\nwhat {CODE} numbers keep of them:\n{drawn(again(test[:6]))}"
    )
    print(f"\ndigits that never were:\n{drawn(dream(random.key(2024)))}")
    error, guess = np.abs(again(test) - test).mean(), np.abs(train.mean(axis=0) - test).mean()
    print(f"\nmean error of a pixel: {error:.3f} (always showing the average digit: {guess:.3f})")
    assert error < 0.9 * guess, "the codes should say something about the digits"


if __name__ == "__main__":
    main()
