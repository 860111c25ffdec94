"""The models as Ingot modules, their inputs, and their losses.

Attribute names are chosen so that `weights.torch_state` can translate them mechanically. The architectures are
the published ones: sizes, strides and normalisations as in the papers or their reference implementations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ingot
from ingot import nn

VOCABULARY = 96  # characters of the character models
Arrays = tuple[np.ndarray, ...]


# --- dense and small convolutional models ---------------------------------------------------------


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def lenet() -> nn.Module:
    """LeNet-5 (LeCun et al., 1998) with rectifiers and maximum pooling, as it is trained today."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


class VAE(nn.Module):
    """Kingma and Welling, 2014; the noise is an input, so that every library draws the same."""

    def __init__(self) -> None:
        self.encoder = nn.Linear(784, 400)
        self.mean = nn.Linear(400, 20)
        self.log_variance = nn.Linear(400, 20)
        self.decoder = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784))

    def forward(self, x: Any, noise: Any) -> tuple[Any, Any, Any]:
        hidden = self.encoder(x).relu()
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        return self.decoder(mean + noise * (log_variance * 0.5).exp()), mean, log_variance


# --- residual networks ----------------------------------------------------------------------------


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    padding = kernel // 2
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, padding=padding, groups=groups, bias=False),
        nn.BatchNorm(outputs),
    ]


class Basic(nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al., 2016)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        self.body = nn.Sequential(*convolution(inputs, width, 3, stride), nn.ReLU(), *convolution(width, width, 3))
        self.shortcut = shortcut(inputs, width, stride)

    def forward(self, x: Any) -> Any:
        return (self.body(x) + self.shortcut(x)).relu()


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1; the stride is on the 3x3, as in the usual variant ("v1.5")."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        self.body = nn.Sequential(
            *convolution(inputs, width, 1), nn.ReLU(), *convolution(width, width, 3, stride), nn.ReLU(),
            *convolution(width, 4 * width, 1),
        )  # fmt: skip
        self.shortcut = shortcut(inputs, 4 * width, stride)

    def forward(self, x: Any) -> Any:
        return (self.body(x) + self.shortcut(x)).relu()


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    same = stride == 1 and inputs == outputs
    return nn.Sequential(*([] if same else convolution(inputs, outputs, 1, stride)))


def residual(
    block: type[Basic] | type[Bottleneck], depths: Sequence[int], small: bool = False, classes: int = 1000
) -> nn.Module:
    """ResNet; `small` has the 3x3 stem for 32x32 images."""
    layers: list[Any] = [*convolution(3, 64, 3), nn.ReLU()] if small else [*convolution(3, 64, 7, 2), nn.ReLU()]
    if not small:
        layers.append(nn.MaxPool2d(3, 2, padding=1))
    inputs = 64
    for stage, depth in enumerate(depths):
        for position in range(depth):
            stride = 2 if stage and position == 0 else 1
            layers.append(block(inputs, 64 << stage, stride))
            inputs = (64 << stage) * block.expansion
    return nn.Sequential(*layers, nn.GlobalAvgPool(), nn.Linear(inputs, classes))


# --- MobileNetV2 ----------------------------------------------------------------------------------


class InvertedResidual(nn.Module):
    """Expand 1x1, depthwise 3x3, project 1x1 (Sandler et al., 2018)."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        width = inputs * expansion
        expand = [*convolution(inputs, width, 1), nn.ReLU6()] if expansion != 1 else []
        self.body = nn.Sequential(
            *expand, *convolution(width, width, 3, stride, groups=width), nn.ReLU6(), *convolution(width, outputs, 1)
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Any) -> Any:
        return x + self.body(x) if self.adds else self.body(x)


MOBILENET_STAGES = (  # expansion, channels, repeats, stride
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip


def mobilenet() -> nn.Module:
    layers: list[Any] = [*convolution(3, 32, 3, 2), nn.ReLU6()]
    inputs = 32
    for expansion, channels, repeats, stride in MOBILENET_STAGES:
        for position in range(repeats):
            layers.append(InvertedResidual(inputs, channels, stride if position == 0 else 1, expansion))
            inputs = channels
    return nn.Sequential(*layers, *convolution(320, 1280, 1), nn.ReLU6(), nn.GlobalAvgPool(), nn.Linear(1280, 1000))


# --- U-Net ----------------------------------------------------------------------------------------


def double_convolution(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(*convolution(inputs, outputs, 3), nn.ReLU(), *convolution(outputs, outputs, 3), nn.ReLU())


class UNet(nn.Module):
    """Ronneberger et al., 2015, with batch normalisation and "same" padding; one logit for each pixel."""

    def __init__(self, widths: Sequence[int] = (16, 32, 64, 128), channels: int = 3) -> None:
        narrow, wide = widths[:-1], widths[1:]
        self.encoders = [double_convolution(i, o) for i, o in zip((channels, *narrow), widths, strict=True)]
        self.pool = nn.MaxPool2d(2)
        self.rises = [nn.ConvTranspose2d(w, n, 2, 2) for n, w in zip(narrow, wide, strict=True)]
        self.decoders = [double_convolution(2 * n, n) for n in narrow]
        self.head = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x: Any) -> Any:
        kept = []
        for level, encoder in enumerate(self.encoders):
            x = encoder(self.pool(x) if level else x)
            kept.append(x)
        for level in reversed(range(len(self.decoders))):
            x = self.decoders[level](ingot.concatenate([kept[level], self.rises[level](x)], axis=1))
        return self.head(x)


# --- recurrent and attention models ---------------------------------------------------------------


class CharacterLSTM(nn.Module):
    def __init__(self, width: int = 256, embedding: int = 128, layers: int = 2) -> None:
        self.embedding = nn.Embedding(VOCABULARY, embedding)
        self.lstm = nn.LSTM(embedding, width, layers, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, index: Any) -> Any:
        return self.head(self.lstm(self.embedding(index))[0])


class EncoderBlock(nn.Module):
    """Normalisation after each sum, as in BERT (Devlin et al., 2019)."""

    def __init__(self, width: int, heads: int) -> None:
        self.attention = nn.MultiHeadAttention(width, heads)
        self.norm1 = nn.LayerNorm(width, 1e-12)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm2 = nn.LayerNorm(width, 1e-12)

    def forward(self, x: Any) -> Any:
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class Bert(nn.Module):
    """The encoder of BERT: token numbers to hidden states; all tokens are of one segment, none is masked."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int = 30522, longest: int = 512) -> None:
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(longest, width)
        self.segment = np.zeros(width, np.float32)
        self.norm = nn.LayerNorm(width, 1e-12)
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads) for _ in range(layers)))

    def forward(self, index: Any) -> Any:
        table = index._coerce(self.positions.weight)
        x = self.tokens(index) + table[: index.shape[1]] + self.segment
        return self.blocks(self.norm(x))


class DecoderBlock(nn.Module):
    """Normalisation before each part, as in GPT-2 (Radford et al., 2019)."""

    def __init__(self, width: int, heads: int) -> None:
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiHeadAttention(width, heads, causal=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """GPT-2: logits of the next token at every position, by the transposed embedding table."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, longest: int) -> None:
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(longest, width)
        self.blocks = nn.Sequential(*(DecoderBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, index: Any) -> Any:
        x = self.tokens(index) + index._coerce(self.positions.weight)[: index.shape[1]]
        x = self.norm(self.blocks(x))
        return x @ x._coerce(self.tokens.weight).transpose(1, 0)


# --- losses ---------------------------------------------------------------------------------------


def classification(model: Any, x: Any, labels: Any) -> Any:
    return nn.cross_entropy(model(x), labels)


def segmentation(model: Any, x: Any, mask: Any) -> Any:
    return nn.binary_cross_entropy_with_logits(model(x), mask)


def evidence(model: Any, x: Any, noise: Any) -> Any:
    """The negative evidence lower bound, per example."""
    logits, mean, log_variance = model(x, noise)
    likelihood = nn.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    divergence = (log_variance + 1.0 - mean * mean - log_variance.exp()).sum() * -0.5
    return (likelihood + divergence) / x.shape[0]


# --- the list -------------------------------------------------------------------------------------


def images(channels: int, size: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda generator, count: generator.standard_normal((count, channels, size, size)).astype(np.float32)


def vectors(width: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda generator, count: generator.standard_normal((count, width)).astype(np.float32)


def pixels(*shape: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda generator, count: generator.random((count, *shape), np.float32)


def numbers(limit: int, *shape: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda generator, count: generator.integers(0, limit, (count, *shape))


def bits(*shape: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda generator, count: generator.integers(0, 2, (count, *shape)).astype(np.float32)


Make = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class Definition:
    """A model, what goes in, and (when it is trained) its loss and what else a batch holds."""

    build: Callable[[], nn.Module]
    inputs: tuple[Make, ...]
    targets: tuple[Make, ...] = ()
    loss: Callable[..., Any] | None = None

    def batch(self, count: int, seed: int = 0) -> Arrays:
        """Inputs, then targets."""
        generator = np.random.default_rng(seed)
        return tuple(make(generator, count) for make in (*self.inputs, *self.targets))


MODELS: dict[str, Definition] = {
    "mlp": Definition(mlp, (vectors(784),), (numbers(10),), classification),
    "lenet": Definition(lenet, (images(1, 28),), (numbers(10),), classification),
    "resnet18": Definition(lambda: residual(Basic, (2, 2, 2, 2)), (images(3, 224),)),
    "resnet50": Definition(lambda: residual(Bottleneck, (3, 4, 6, 3)), (images(3, 224),)),
    "mobilenetv2": Definition(mobilenet, (images(3, 224),)),
    "unet128": Definition(UNet, (images(3, 128),)),
    "charlstm": Definition(CharacterLSTM, (numbers(VOCABULARY, 64),), (numbers(VOCABULARY, 64),), classification),
    "bertmini": Definition(lambda: Bert(4, 256, 4), (numbers(30522, 128),)),
    "bertbase": Definition(lambda: Bert(12, 768, 12), (numbers(30522, 128),)),
    "gpt2": Definition(lambda: GPT(12, 768, 12, 50257, 1024), (numbers(50257, 64),)),
    "resnet18cifar": Definition(
        lambda: residual(Basic, (2, 2, 2, 2), small=True, classes=10), (images(3, 32),), (numbers(10),), classification
    ),
    "nanogpt": Definition(
        lambda: GPT(4, 128, 4, VOCABULARY, 128),
        (numbers(VOCABULARY, 128),),
        (numbers(VOCABULARY, 128),),
        classification,
    ),
    "vae": Definition(VAE, (pixels(784),), (vectors(20),), evidence),
    "unet64": Definition(UNet, (images(3, 64),), (bits(1, 64, 64),), segmentation),
}
