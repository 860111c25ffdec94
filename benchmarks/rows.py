"""What is measured: data only, read by the command line before anything heavy is imported."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Row:
    """`key` is what --rows takes."""

    key: str
    title: str


@dataclass(frozen=True)
class Inference(Row):
    model: str
    batch: int
    winograd: bool = False  # it has 3x3 convolutions: also measured without Winograd


@dataclass(frozen=True)
class Training(Row):
    model: str
    batch: int
    optimizer: str
    rate: float


@dataclass(frozen=True)
class Gemm(Row):
    """[m, k] @ [k, n]"""

    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Convolution(Row):
    """An image and a kernel of equal sides, padding that keeps the size (before the stride); `chain` equal layers in a
    row. A transposed one makes the image `stride` times as large."""

    size: int
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    groups: int = 1
    chain: int = 1
    dilation: int = 1
    rank: int = 2
    transposed: bool = False

    @property
    def padding(self) -> int:
        return (self.kernel - self.stride) // 2 if self.transposed else self.dilation * (self.kernel // 2)


@dataclass(frozen=True)
class Stream(Row):
    """A memory-bound function: how often it must read and write an array of `rows` by `columns`."""

    function: str
    rows: int
    columns: int
    reads: float
    writes: float


INFERENCE = (
    Inference("mlp-1", "MLP 784-512-512-10 (1)", "mlp", 1),
    Inference("mlp-64", "MLP (64)", "mlp", 64),
    Inference("lenet-1", "LeNet-5 (1)", "lenet", 1),
    Inference("lenet-32", "LeNet-5 (32)", "lenet", 32),
    Inference("resnet18", "ResNet-18 224 (1)", "resnet18", 1, True),
    Inference("resnet50", "ResNet-50 224 (1)", "resnet50", 1, True),
    Inference("mobilenetv2", "MobileNetV2 224 (1)", "mobilenetv2", 1),
    Inference("unet", "U-Net 16-32-64-128, 128x128 (1)", "unet128", 1, True),
    Inference("charlstm-1", "char-LSTM 2x256, T=64 (1)", "charlstm", 1),
    Inference("charlstm-16", "char-LSTM (16)", "charlstm", 16),
    Inference("bertmini", "BERT-mini 4x256, T=128 (1)", "bertmini", 1),
    Inference("bertbase", "BERT-base, T=128 (1)", "bertbase", 1),
    Inference("gpt2", "GPT-2 small, T=64 (1)", "gpt2", 1),
)

TRAINING = (
    Training("mlp", "MLP 784-512-512-10 (64), Adam", "mlp", 64, "adam", 1e-3),
    Training("lenet", "LeNet-5 (32), SGD momentum", "lenet", 32, "sgd", 1e-2),
    Training("resnet18", "ResNet-18 CIFAR stem, 32x32 (16), SGD momentum", "resnet18cifar", 16, "sgd", 1e-2),
    Training("charlstm", "char-LSTM 2x256, T=64 (16), Adam", "charlstm", 16, "adam", 1e-3),
    Training("nanogpt", "nanoGPT 4 layers, 128 wide, T=128 (8), AdamW", "nanogpt", 8, "adamw", 1e-3),
    Training("vae", "VAE 784-400-20 (64), Adam", "vae", 64, "adam", 1e-3),
    Training("unet", "U-Net 64x64 (4), Adam", "unet64", 4, "adam", 1e-3),
)

BATCH = tuple(
    Inference(f"{model}-{batch}", f"{title} ({batch})", model, batch)
    for model, title in (("mlp", "MLP"), ("lenet", "LeNet-5"))
    for batch in (1, 2, 4, 8, 16, 32, 64)
)

THREADS: tuple[Inference | Training, ...] = (
    *(row for row in INFERENCE if row.key in ("resnet50", "bertbase")),
    Training("resnet18-training", "ResNet-18 training (16)", "resnet18cifar", 16, "sgd", 1e-2),
)


def _gemm(kind: str, m: int, n: int, k: int) -> Gemm:
    return Gemm(f"{m}x{n}x{k}", f"{kind} {m}x{n}x{k}", m, n, k)


GEMM = (
    *(_gemm("square", s, s, s) for s in (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)),
    *(
        _gemm("BERT-base", *shape)
        for shape in ((128, 768, 768), (128, 3072, 768), (128, 768, 3072), (128, 128, 64), (128, 64, 128))
    ),
    *(
        _gemm("ResNet-50", *shape)
        for shape in (
            (12544, 64, 147),
            (3136, 64, 64),
            (3136, 64, 576),
            (3136, 256, 64),
            (784, 128, 1152),
            (784, 512, 128),
            (196, 256, 2304),
            (196, 1024, 256),
            (49, 512, 4608),
            (49, 2048, 512),
        )
    ),
    *(_gemm("dense", *shape) for shape in ((32, 512, 784), (64, 512, 784), (64, 10, 512))),
    *(_gemm("one row", *shape) for shape in ((1, 512, 784), (1, 1024, 1024), (1, 3072, 768), (1, 4096, 4096))),
    *(_gemm("odd", *shape) for shape in ((127, 131, 257), (33, 65, 17), (7, 13, 101), (255, 511, 1023), (5, 1000, 3))),
)

INTEGERS = (
    *(_gemm("square", s, s, s) for s in (128, 256, 512, 1024)),
    *(_gemm("MiniLM", *shape) for shape in ((128, 384, 384), (128, 1536, 384), (128, 384, 1536))),
    *(_gemm("one row", *shape) for shape in ((1, 1024, 1024), (1, 4096, 4096))),
    *(_gemm("odd", *shape) for shape in ((127, 131, 257), (33, 65, 17))),
)

QUANTISED = tuple(row for row in INFERENCE if row.key in ("resnet18", "resnet50", "mobilenetv2", "bertmini", "bertbase"))

CONVOLUTION = (
    Convolution("r56", "56x56 64-64 3x3", 56, 64, 64, 3),
    Convolution("r28", "28x28 128-128 3x3", 28, 128, 128, 3),
    Convolution("r14", "14x14 256-256 3x3", 14, 256, 256, 3),
    Convolution("r7", "7x7 512-512 3x3", 7, 512, 512, 3),
    Convolution("p56", "56x56 64-256 1x1", 56, 64, 256, 1),
    Convolution("p14", "14x14 1024-256 1x1", 14, 1024, 256, 1),
    Convolution("stem", "224x224 3-64 7x7 stride 2", 224, 3, 64, 7, 2),
    Convolution("d112", "112x112 32 3x3 depthwise", 112, 32, 32, 3, groups=32),
    Convolution("d56", "56x56 144 3x3 depthwise, stride 2", 56, 144, 144, 3, 2, groups=144),
    Convolution("d14", "14x14 384 3x3 depthwise", 14, 384, 384, 3, groups=384),
    Convolution("u128", "128x128 16-16 3x3", 128, 16, 16, 3),
    Convolution("u64", "64x64 32-32 3x3", 64, 32, 32, 3),
    Convolution("g14", "14x14 512-512 3x3, 32 groups", 14, 512, 512, 3, groups=32),
    Convolution("g28", "28x28 128-128 3x3, 32 groups", 28, 128, 128, 3, groups=32),
    Convolution("a28", "28x28 256-256 3x3, dilation 2", 28, 256, 256, 3, dilation=2),
    Convolution("s28", "56x56 64-128 3x3, stride 2", 56, 64, 128, 3, 2),
    Convolution("k14", "14x14 64-64 5x5", 14, 64, 64, 5),
    Convolution("h128", "128x128 64-3 3x3", 128, 64, 3, 3),
    Convolution("t32", "32x32 64-32 2x2 transposed, stride 2", 32, 64, 32, 2, 2, transposed=True),
    Convolution("t16", "16x16 128-64 4x4 transposed, stride 2", 16, 128, 64, 4, 2, transposed=True),
    Convolution("l1024", "1024 64-64 9, one axis", 1024, 64, 64, 9, rank=1),
    Convolution("l16000", "16000 1-32 16, stride 8, one axis", 16000, 1, 32, 16, 8, rank=1),
    Convolution("v16", "16x16x16 32-32 3x3x3", 16, 32, 32, 3, rank=3),
    Convolution("r56x6", "56x56 64-64 3x3, six in a row", 56, 64, 64, 3, chain=6),
    Convolution("r28x6", "28x28 128-128 3x3, six in a row", 28, 128, 128, 3, chain=6),
    Convolution("r14x6", "14x14 256-256 3x3, six in a row", 14, 256, 256, 3, chain=6),
    Convolution("d14x6", "14x14 384 3x3 depthwise, six in a row", 14, 384, 384, 3, groups=384, chain=6),
)

STREAM = tuple(
    Stream(name, title, name, 16384, 1024, reads, writes)
    for name, title, reads, writes in (
        ("chain", "relu(x * a + b) * c", 1, 1),
        ("add", "x + y", 2, 1),
        ("exp", "exp", 1, 1),
        ("tanh", "tanh", 1, 1),
        ("erf", "erf", 1, 1),
        ("log", "log", 1, 1),
        ("gelu", "gelu", 1, 1),
        ("sum", "sum of all", 1, 0),
        ("sum-rows", "sum of each row", 1, 0),
        ("sum-columns", "sum of each column", 1, 0),
        ("max-rows", "maximum of each row", 1, 0),
        ("softmax", "softmax of each row", 1, 1),
        ("log-softmax", "log-softmax of each row", 1, 1),
        ("layer-norm", "layer norm of each row", 1, 1),
        ("transpose", "transpose", 1, 1),
    )
)

OVERHEAD = (
    Row("one", "x + 1, 16 numbers"),
    Row("four", "a + b + c + d, 16 numbers each"),
    Row("symbolic", 'x + 1, 16 numbers, f32["batch"]'),
)

SUITES: dict[str, tuple[Row, ...]] = {
    "inference": INFERENCE,
    "training": TRAINING,
    "batch": BATCH,
    "threads": THREADS,
    "gemm": GEMM,
    "int8": INTEGERS,
    "quantised": QUANTISED,
    "conv": CONVOLUTION,
    "stream": STREAM,
    "compile": (*INFERENCE, *(replace(r, key=f"{r.key}-training", title=f"{r.title}: training") for r in TRAINING)),
    "memory": TRAINING,
    "overhead": OVERHEAD,
}
SEPARATE = ("inference", "training", "quantised", "threads", "compile", "memory")  # suites of which each row has its own process


def select(suite: str, keys: list[str]) -> list[Row]:
    """The rows of a suite that a list of keys names; all of them when it names none at all."""
    return [row for row in SUITES[suite] if not keys or row.key in keys]
