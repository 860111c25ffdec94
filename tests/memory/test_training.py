"""What a training step needs follows from what its gradient needs: activations once, and what one layer takes."""

from __future__ import annotations

import ingot
from ingot import nn, optim

FLOAT = 4


def peak(model: nn.Module, *types) -> int:
    def loss(model, x):
        return (model(x) ** 2.0).mean()

    return ingot.Trainer(model, loss, optim.SGD(0.1, momentum=0.9), *types, cache=False).executable.peak_bytes or 0


def test_weights_of_convolutions_are_not_kept_in_another_order():
    """The weights are larger than the activations here. Each layer keeps what its convolution made and what the next
    one reads; one layer at a time may have its weight transformed."""
    batch, channels, size, layers = 2, 128, 8, 5
    nn.seed(0)
    blocks = [
        layer
        for _ in range(layers)
        for layer in (nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
    ]
    activation = FLOAT * batch * channels * size * size
    weight = FLOAT * 9 * channels * channels
    products = weight * 36 // 9  # of the interpolated gradient of one weight
    found = peak(nn.Sequential(*blocks), ingot.f32[batch, channels, size, size])
    assert found < (2 * layers + 4) * activation + products + 2 * weight
    assert found < (2 * layers + 4) * activation + layers * weight + products


def test_attention_keeps_no_scores():
    """Queries, keys, values, what they are made of and their result: not the matrix of each head. One layer at a time
    has three of them."""
    batch, length, width, heads, layers = 2, 96, 32, 4, 4
    nn.seed(0)

    class Layer(nn.Module):
        def __init__(self) -> None:
            self.attention = nn.MultiHeadAttention(width, heads)

        def __call__(self, x):
            return x + self.attention(x)

    rows = FLOAT * batch * length * width
    scores = FLOAT * batch * heads * length * length
    found = peak(nn.Sequential(*(Layer() for _ in range(layers))), ingot.f32[batch, length, width])
    assert found < 6 * layers * rows + 3 * scores + 4 * rows


def test_a_gelu_keeps_what_it_was_given_and_what_it_made():
    batch, width, layers = 128, 64, 6
    nn.seed(0)
    model = nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.GELU())))
    rows = FLOAT * batch * width
    assert peak(model, ingot.f32[batch, width]) < (2 * layers + 3) * rows
