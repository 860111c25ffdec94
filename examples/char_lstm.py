"""An LSTM learns a poem letter by letter, then recites it from its first words.

The poem is Lewis Carroll's Jabberwocky (1871). Training sees windows of 48 letters; reciting feeds each letter
back with the network's state, one call of compiled code a letter. Well trained, it says the poem by heart.
Run it with `python examples/char_lstm.py`.
"""

import argparse
from pathlib import Path

import numpy as np

import ingot
from ingot import nn, optim

TEXT = (Path(__file__).parent / "data" / "jabberwocky.txt").read_text(encoding="utf-8")
LETTERS = sorted(set(TEXT))
WIDTH, WINDOW = 96, 48


class Reciter(nn.Module):
    def __init__(self):
        self.embedding = nn.Embedding(len(LETTERS), 24, nn.initializers.normal(0.3))
        self.lstm = nn.LSTM(24, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, len(LETTERS))

    def forward(self, letters, state=None):
        """Scores of the letter after each of `letters`, and the state after the last."""
        outputs, state = self.lstm(self.embedding(letters), state)
        return self.head(outputs), state


def loss(model, letters, following):
    scores, _ = model(letters)
    return nn.cross_entropy(scores, following)


def encode(text: str) -> np.ndarray:
    return np.array([LETTERS.index(letter) for letter in text], np.int64)


def recite(model: Reciter, beginning: str, count: int) -> str:
    """The likeliest letters after the beginning, one at a time."""

    def following(letters, hidden, cell):
        scores, [(hidden, cell)] = model(letters, [(hidden, cell)])
        return scores[:, -1].argmax(axis=1, keepdims=True), hidden, cell

    state = ingot.f32[1, WIDTH]
    say = ingot.compile(following, ingot.i64[1, "time"], state, state)
    hidden = cell = np.zeros((1, WIDTH), np.float32)
    letter, hidden, cell = say(encode(beginning)[None], hidden, cell)
    said = beginning
    for _ in range(count):
        said += LETTERS[letter.item()]
        letter, hidden, cell = say(letter, hidden, cell)
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    steps = 100 if parser.parse_args().quick else 400

    poem = encode(TEXT)
    rate = optim.cosine(6e-3, steps, warmup=20)
    optimizer = optim.Adam(rate, clip_norm=1.0)
    windows = ingot.i64["batch", WINDOW]
    trainer = ingot.Trainer(Reciter(), loss, optimizer, windows, windows)
    generator = np.random.default_rng(0)
    for step in range(steps):
        starts = generator.integers(0, len(poem) - WINDOW - 1, 16)
        places = starts[:, None] + np.arange(WINDOW)
        value = trainer.step(poem[places], poem[places + 1])
        if step % (steps // 5) == 0 or step == steps - 1:
            print(f"step {step:4}   loss {value:.3f} per letter")

    said = recite(trainer.model, "'Twas brillig", 220)
    print(f"\n{said}\n")
    print(f"the first {same_letters(said)} letters are as Lewis Carroll wrote them")
    assert value < 2.0, "it should have learnt some of the poem by now"


def same_letters(said: str) -> int:
    differing = [n for n, (a, b) in enumerate(zip(said, TEXT, strict=False)) if a != b]
    return differing[0] if differing else len(said)


if __name__ == "__main__":
    main()
