"""The same models in torch, written as torch users write them: its fused attention, its LSTM, its layers.

Names follow `networks`, so that weights can be copied. While a model is exported, attention is spelled out with a
constant mask, which is the form that ONNX runtimes recognise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.networks import MOBILENET_STAGES, VOCABULARY

# torch's checker sees no types in modules that it stores as attributes.
# pyright: reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(784, 400)
        self.mean = nn.Linear(400, 20)
        self.log_variance = nn.Linear(400, 20)
        self.decoder = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784))

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x).relu()
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        return self.decoder(mean + noise * (log_variance * 0.5).exp()), mean, log_variance


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    same = stride == 1 and inputs == outputs
    return nn.Sequential(*([] if same else convolution(inputs, outputs, 1, stride)))


class Basic(nn.Module):
    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *convolution(inputs, width, 3, stride), nn.ReLU(inplace=True), *convolution(width, width, 3)
        )
        self.shortcut = shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x), inplace=True)


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *convolution(inputs, width, 1), nn.ReLU(inplace=True), *convolution(width, width, 3, stride),
            nn.ReLU(inplace=True), *convolution(width, 4 * width, 1),
        )  # fmt: skip
        self.shortcut = shortcut(inputs, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x), inplace=True)


def residual(
    block: type[Basic] | type[Bottleneck], depths: Sequence[int], small: bool = False, classes: int = 1000
) -> nn.Module:
    stem = convolution(3, 64, 3) if small else convolution(3, 64, 7, 2)
    layers = [*stem, nn.ReLU(inplace=True), *([] if small else [nn.MaxPool2d(3, 2, padding=1)])]
    inputs = 64
    for stage, depth in enumerate(depths):
        for position in range(depth):
            layers.append(block(inputs, 64 << stage, 2 if stage and position == 0 else 1))
            inputs = (64 << stage) * block.expansion
    return nn.Sequential(*layers, GlobalAverage(), nn.Linear(inputs, classes))


class GlobalAverage(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.adaptive_avg_pool2d(x, 1).flatten(1)


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        expand = [*convolution(inputs, width, 1), nn.ReLU6(inplace=True)] if expansion != 1 else []
        self.body = nn.Sequential(
            *expand, *convolution(width, width, 3, stride, groups=width), nn.ReLU6(inplace=True),
            *convolution(width, outputs, 1),
        )  # fmt: skip
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


def mobilenet() -> nn.Module:
    layers = [*convolution(3, 32, 3, 2), nn.ReLU6(inplace=True)]
    inputs = 32
    for expansion, channels, repeats, stride in MOBILENET_STAGES:
        for position in range(repeats):
            layers.append(InvertedResidual(inputs, channels, stride if position == 0 else 1, expansion))
            inputs = channels
    tail = [*convolution(320, 1280, 1), nn.ReLU6(inplace=True), GlobalAverage(), nn.Linear(1280, 1000)]
    return nn.Sequential(*layers, *tail)


def double_convolution(inputs: int, outputs: int) -> nn.Module:
    first, second = convolution(inputs, outputs, 3), convolution(outputs, outputs, 3)
    return nn.Sequential(*first, nn.ReLU(inplace=True), *second, nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, widths: Sequence[int] = (16, 32, 64, 128), channels: int = 3) -> None:
        super().__init__()
        narrow, wide = widths[:-1], widths[1:]
        self.encoders = nn.ModuleList(
            double_convolution(i, o) for i, o in zip((channels, *narrow), widths, strict=True)
        )
        self.pool = nn.MaxPool2d(2)
        self.rises = nn.ModuleList(nn.ConvTranspose2d(w, n, 2, 2) for n, w in zip(narrow, wide, strict=True))
        self.decoders = nn.ModuleList(double_convolution(2 * n, n) for n in narrow)
        self.head = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for level, encoder in enumerate(self.encoders):
            x = encoder(self.pool(x) if level else x)
            kept.append(x)
        for level in reversed(range(len(self.decoders))):
            x = self.decoders[level](torch.cat([kept[level], self.rises[level](x)], 1))
        return self.head(x)


class CharacterLSTM(nn.Module):
    """torch keeps two biases for each gate where one does; the second is zero and stays so."""

    def __init__(self, width: int = 256, embedding: int = 128, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, embedding)
        self.lstm = nn.LSTM(embedding, width, layers, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)
        for name, parameter in self.lstm.named_parameters():
            parameter.requires_grad_(not name.startswith("bias_hh"))

    def forward(self, index: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(index))[0])


class Attention(nn.Module):
    """Queries, keys and values by one product."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.qkv = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        parts = self.qkv(x).split(width, dim=2)
        q, k, v = (p.view(batch, time, self.heads, width // self.heads).transpose(1, 2) for p in parts)
        if torch.onnx.is_in_onnx_export():
            mixed = self._spelled_out(q, k, v, time)
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.output(mixed.transpose(1, 2).reshape(batch, time, width))

    def _spelled_out(self, q: Tensor, k: Tensor, v: Tensor, time: int) -> Tensor:
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        if self.causal:
            scores = scores + torch.full((int(time), int(time)), -1e30).triu(1)
        return scores.softmax(-1) @ v


class EncoderBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norm1 = nn.LayerNorm(width, 1e-12)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm2 = nn.LayerNorm(width, 1e-12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class Bert(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, vocabulary: int = 30522, longest: int = 512) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(longest, width)
        self.segment = nn.Parameter(torch.zeros(width))
        self.norm = nn.LayerNorm(width, 1e-12)
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads) for _ in range(layers)))

    def forward(self, index: Tensor) -> Tensor:
        x = self.tokens(index) + self.positions.weight[: index.shape[1]] + self.segment
        return self.blocks(self.norm(x))


class DecoderBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, longest: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(longest, width)
        self.blocks = nn.Sequential(*(DecoderBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, index: Tensor) -> Tensor:
        x = self.tokens(index) + self.positions.weight[: index.shape[1]]
        return functional.linear(self.norm(self.blocks(x)), self.tokens.weight)


def classification(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    logits = model(x)
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def segmentation(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(model(x), mask)


def evidence(model: nn.Module, x: Tensor, noise: Tensor) -> Tensor:
    logits, mean, log_variance = model(x, noise)
    likelihood = functional.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    divergence = (log_variance + 1.0 - mean * mean - log_variance.exp()).sum() * -0.5
    return (likelihood + divergence) / x.shape[0]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "lenet": lenet,
    "resnet18": lambda: residual(Basic, (2, 2, 2, 2)),
    "resnet50": lambda: residual(Bottleneck, (3, 4, 6, 3)),
    "mobilenetv2": mobilenet,
    "unet128": UNet,
    "charlstm": CharacterLSTM,
    "bertmini": lambda: Bert(4, 256, 4),
    "bertbase": lambda: Bert(12, 768, 12),
    "gpt2": lambda: GPT(12, 768, 12, 50257, 1024),
    "resnet18cifar": lambda: residual(Basic, (2, 2, 2, 2), small=True, classes=10),
    "nanogpt": lambda: GPT(4, 128, 4, VOCABULARY, 128),
    "vae": VAE,
    "unet64": UNet,
}

LOSSES: dict[str, Callable[..., Any]] = {
    "classification": classification,
    "segmentation": segmentation,
    "evidence": evidence,
}


def optimizer(name: str, parameters: list[Any], rate: float) -> torch.optim.Optimizer:
    """torch's own single-pass kernels, the fastest it has on a CPU."""
    match name:
        case "sgd":
            return torch.optim.SGD(parameters, rate, momentum=0.9, fused=True)
        case "adam":
            return torch.optim.Adam(parameters, rate, fused=True)
        case "adamw":
            return torch.optim.AdamW(parameters, rate, weight_decay=1e-2, fused=True)
    raise ValueError(f"no optimiser is called {name!r}")
