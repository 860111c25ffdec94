"""A tiny GPT learns to sort: after six digits and a mark it writes the same digits in order.

A decoder-only Transformer (Vaswani et al., 2017; Radford et al., 2019) is trained on sequences such as
`315406>013456` that are drawn anew for each step, so it cannot learn them by heart. At the end it sorts
sequences digit by digit, and each answer is compared with the right one.
Run it with `python examples/nano_gpt.py`.
"""

import argparse

import numpy as np

import ingot
from ingot import nn, optim

LENGTH, MARK = 6, 10  # digits to sort; the token between question and answer
TOKENS, WIDTH, HEADS, LAYERS = 11, 48, 4, 2
TIME = 2 * LENGTH  # the last digit of the answer is never an input


class GPT(nn.Module):
    def __init__(self, seed: int = 0):
        source = np.random.default_rng(seed)  # one source for all layers, so that no two begin alike
        self.tokens = nn.Embedding(TOKENS, WIDTH, generator=source)
        self.places = nn.Embedding(TIME, WIDTH, generator=source)
        blocks = [nn.TransformerBlock(WIDTH, HEADS, causal=True, generator=source) for _ in range(LAYERS)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False, generator=source)

    def forward(self, tokens):
        """Scores of the token after each of `tokens`."""
        place = ingot.arange(tokens.shape[1], like=tokens)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places(place))))


def loss(model, tokens, following):
    """Only the answer counts: the question is random."""
    return nn.cross_entropy(model(tokens)[:, LENGTH:], following[:, LENGTH:])


def sequences(count: int, generator: np.random.Generator) -> np.ndarray:
    digits = generator.integers(0, 10, (count, LENGTH))
    return np.concatenate([digits, np.full((count, 1), MARK), np.sort(digits, axis=1)], axis=1)


def answers(model: GPT, questions: np.ndarray) -> np.ndarray:
    """Write the answers one digit at a time, the likeliest each time."""
    following = ingot.compile(
        lambda tokens: model(tokens)[:, -1].argmax(axis=1, keepdims=True),
        ingot.i64["batch", ingot.dim("time", 1, TIME)],
    )
    tokens = questions
    for _ in range(LENGTH):
        tokens = np.concatenate([tokens, following(tokens)], axis=1)
    return tokens[:, -LENGTH:]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps: it sorts badly")
    quick = parser.parse_args().quick
    steps = 60 if quick else 400

    optimizer = optim.AdamW(optim.cosine(4e-3, steps, warmup=steps // 10), clip_norm=1.0)
    types = ingot.i64["batch", TIME]
    trainer = ingot.Trainer(GPT(), loss, optimizer, types, types)
    generator = np.random.default_rng(0)
    for step in range(steps):
        batch = sequences(64, generator)
        value = trainer.step(batch[:, :-1], batch[:, 1:])
        if step % (steps // 6) == 0 or step == steps - 1:
            print(f"step {step:4}   loss {value:.3f}")

    test = sequences(200, np.random.default_rng(1))
    given = answers(trainer.model, test[:, : LENGTH + 1])
    right = (given == test[:, -LENGTH:]).all(axis=1)
    for question, answer, good in list(zip(test, given, right, strict=True))[:5]:
        asked, said = ("".join(map(str, part)) for part in (question[:LENGTH], answer))
        print(f"{asked} > {said}   {'right' if good else 'wrong'}")
    digits = (given == test[:, -LENGTH:]).mean()
    print(f"{right.mean():.0%} of {len(test)} sequences are sorted, {digits:.0%} of all digits are in place")
    assert digits > (0.25 if quick else 0.9), "it should sort better than that"


if __name__ == "__main__":
    main()
