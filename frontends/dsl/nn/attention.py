"""Attention and the Transformer layers built on it. Data is [batch, time, features]."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.compiler.ops.attention import Attention
from ingot.frontends.dsl.module import Module
from ingot.frontends.dsl.nn.layers import GELU, Dropout, Generator, Linear, Sequential, generator_of
from ingot.frontends.dsl.nn.normalization import LayerNorm


class MultiHeadAttention(Module):
    """Scaled dot-product attention in `heads` subspaces (Vaswani et al., 2017)."""

    def __init__(
        self,
        width: int,
        heads: int,
        causal: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        generator: Generator = None,
    ) -> None:
        if width % heads:
            raise ValueError(f"{heads} heads do not divide a width of {width}")
        source = generator_of(generator)
        self.heads = heads
        self.causal = causal
        self.query = Linear(width, width, bias, generator=source)
        self.key = Linear(width, width, bias, generator=source)
        self.value = Linear(width, width, bias, generator=source)
        self.output = Linear(width, width, bias, generator=source)
        self.dropout = Dropout(dropout)

    def _split(self, x: Any) -> Any:
        batch, time, width = x.shape
        return x.reshape(batch, time, self.heads, width // self.heads).transpose(0, 2, 1, 3)

    def forward(self, x: Any, context: Any = None, mask: Any = None) -> Any:
        """`mask` is added to the scores; `context` is what is attended to (x itself by default)."""
        context = x if context is None else context
        q, k, v = self._split(self.query(x)), self._split(self.key(context)), self._split(self.value(context))
        extra = () if mask is None else (q._coerce(mask),)
        mixed = q.apply(Attention(causal=self.causal), k, v, *extra).transpose(0, 2, 1, 3)
        return self.dropout(self.output(mixed.reshape(*x.shape)))


class TransformerBlock(Module):
    """x + attention(norm(x)), then x + mlp(norm(x))  (pre-norm)."""

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int | None = None,
        causal: bool = False,
        dropout: float = 0.0,
        generator: Generator = None,
    ) -> None:
        source = generator_of(generator)
        hidden = hidden or 4 * width
        self.norm1 = LayerNorm(width)
        self.attention = MultiHeadAttention(width, heads, causal, dropout=dropout, generator=source)
        self.norm2 = LayerNorm(width)
        self.mlp = Sequential(
            Linear(width, hidden, generator=source), GELU(), Linear(hidden, width, generator=source), Dropout(dropout)
        )

    def forward(self, x: Any, mask: Any = None) -> Any:
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.mlp(self.norm2(x))


class PositionalEncoding(Module):
    """Adds sine and cosine waves of geometric wavelengths (Vaswani et al., 2017)."""

    def __init__(self, width: int, longest: int = 1024) -> None:
        position = np.arange(longest)[:, None]
        rate = np.exp(-np.log(10000.0) * (np.arange(width) // 2 * 2) / width)
        table = np.where(np.arange(width) % 2 == 0, np.sin(position * rate), np.cos(position * rate))
        self.table = (table.astype(np.float32),)  # in a tuple: fixed, neither parameter nor state

    def forward(self, x: Any) -> Any:
        return x + x._coerce(self.table[0])[: x.shape[1]]
