"""Layers, losses and initialisers."""

from ingot.frontends.dsl.module import Buffer, Module
from ingot.frontends.dsl.nn import initializers, losses
from ingot.frontends.dsl.nn.attention import MultiHeadAttention, PositionalEncoding, TransformerBlock
from ingot.frontends.dsl.nn.convolution import (
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    GlobalAvgPool,
    GlobalMaxPool,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
)
from ingot.frontends.dsl.nn.layers import (
    ELU,
    GELU,
    SELU,
    Activation,
    Dropout,
    Embedding,
    Flatten,
    HardSigmoid,
    HardSwish,
    LeakyReLU,
    Linear,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Residual,
    Sequential,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Softsign,
    Tanh,
)
from ingot.frontends.dsl.nn.losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    gaussian_nll,
    hinge,
    huber,
    kl_divergence,
    l1,
    mse,
    nll,
)
from ingot.frontends.dsl.nn.normalization import (
    BatchNorm,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    RMSNorm,
)
from ingot.frontends.dsl.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell

__all__ = [name for name in dir() if not name.startswith("_")]
