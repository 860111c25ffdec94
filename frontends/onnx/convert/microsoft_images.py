"""com.microsoft: ops on images, most of them with the channels last."""

from __future__ import annotations

from typing import Any

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.types import i64
from ingot.compiler.ops.indexing import Gather
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.convert.convolution import convolved, greatest, per_channel, transposed
from ingot.frontends.onnx.convert.microsoft import activated
from ingot.frontends.onnx.convert.normalization import grouped
from ingot.frontends.onnx.convert.quantized import qlinear_conv
from ingot.frontends.onnx.convert.vision import grid_sample, line
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import MICROSOFT, onnx_op

onnx_op("GridSample", domain=MICROSOFT, ranks={0: 4, 1: 4})(grid_sample)


def channels_first(x: Any) -> Any:
    return x.transpose((0, x.rank - 1, *range(1, x.rank - 1)))


def channels_last(x: Any) -> Any:
    return x.transpose((0, *range(2, x.rank), 1))


# --- convolutions and pooling -------------------------------------------------------------------------


@onnx_op("NhwcMaxPool", domain=MICROSOFT, least_ranks={0: 3})
def nhwc_max_pool(op: Call, x: Tensor) -> Any:
    return channels_last(greatest(op, channels_first(x)))


@onnx_op("NhwcConv", "NhwcFusedConv", domain=MICROSOFT, least_ranks={0: 3})
def nhwc_conv(op: Call, x: Tensor, w: Tensor, bias: Tensor | None = None, more: Tensor | None = None) -> Any:
    """The weight has the order of the standard's; what is added before the activation has that of the result."""
    op.require(more is None or op.name == "NhwcFusedConv", Kind.INPUT_COUNT, "it adds nothing to its result")
    result = convolved(op, channels_first(x), w)
    result = channels_last(result if bias is None else per_channel(result, bias))
    return activated(op, result if more is None else result + more)


@onnx_op("QLinearConv", domain=MICROSOFT, least_ranks={0: 3})
def qlinear_conv_any_order(
    op: Call,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Tensor | None = None,
) -> Any:
    last = bool(op.get("channels_last", 0))
    data = channels_first(x) if last else x
    result = qlinear_conv(op, data, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias)
    return channels_last(result) if last else result


@onnx_op("ConvTransposeWithDynamicPads", domain=MICROSOFT, dims=(2,), least_ranks={0: 3, 1: 3})
def conv_transpose_with_dynamic_pads(
    op: Call, x: Tensor, w: Tensor, pads: tuple[Dim, ...] | None = None, bias: Tensor | None = None
) -> Any:
    sides = 2 * (w.rank - 2)
    op.require(pads is None or len(pads) == sides, Kind.BAD_VALUE, f"{len(pads or ())} pads instead of {sides}")
    return transposed(op, x, w, bias, (0,) * sides if pads is None else pads)


# --- norms ------------------------------------------------------------------------------------------


@onnx_op("GroupNorm", domain=MICROSOFT, ranks={1: 1, 2: 1}, least_ranks={0: 3})
def group_norm(op: Call, x: Tensor, gamma: Tensor, beta: Tensor) -> Any:
    activation = op.get("activation")
    op.require(activation in (0, 1), Kind.BAD_ATTRIBUTE, f"activation is {activation}; 0 is none and 1 is SiLU")
    last = bool(op.get("channels_last", 1))
    data, groups = channels_first(x) if last else x, op.get("groups")
    channels = data.shape[1]
    fits = groups > 0 and (not isinstance(channels, int) or channels % groups == 0)
    op.require(fits, Kind.BAD_ATTRIBUTE, f"{groups} groups of {channels} channels")
    wide = data.cast(x.dtype.compute)
    result = grouped(wide, groups, gamma, beta, op.get("epsilon", 1e-5))
    result = (result * result.sigmoid() if activation else result).cast(x.dtype)
    return channels_last(result) if last else result


@onnx_op("SkipGroupNorm", domain=MICROSOFT, ranks={1: 1, 2: 1, 4: 1}, least_ranks={0: 3})
def skip_group_norm(
    op: Call, x: Tensor, gamma: Tensor, beta: Tensor, skip: Tensor, bias: Tensor | None = None
) -> Any:
    """What is added may be one number for each image and channel."""
    last = bool(op.get("channels_last", 1))
    op.require(skip.rank in (2, x.rank), Kind.BAD_SHAPE, f"{skip.type!r} is added to {x.type!r}")
    inner = (1,) * (x.rank - 2)
    if skip.rank == 2:
        skip = skip.reshape(skip.shape[0], *inner, skip.shape[1]) if last else skip.reshape(*skip.shape, *inner)
    total = x + skip
    if bias is not None:
        total = total + (bias if last else bias.reshape(bias.shape[0], *inner))
    return group_norm(op, total, gamma, beta), total


# --- regions ----------------------------------------------------------------------------------------


@onnx_op("CropAndResize", domain=MICROSOFT, dims=(3,), ranks={0: 4, 1: 2, 2: 1})
def crop_and_resize(op: Call, x: Tensor, rois: Tensor, batch: Tensor, size: tuple[Dim, ...]) -> Any:
    """Regions [r, (y1, x1, y2, x2)] of image batch[r], in parts of its extent, each as an image of this size whose corners
    are theirs. Places outside of the image have a value of their own."""
    mode = op.choice("mode", "bilinear", ("bilinear", "nearest"))
    op.require(len(size) == 2, Kind.BAD_SHAPE, f"the size of its crops has {len(size)} dims, not 2")
    op.require(all(not isinstance(d, int) or d > 0 for d in size), Kind.BAD_VALUE, f"the size of its crops is {list(size)}")
    op.require(symbolic.equal(rois.shape[1], 4) is not False, Kind.BAD_SHAPE, f"its regions are {rois.type!r}")
    wide = x.dtype.compute
    corners, count = rois.cast(wide), rois.shape[0]
    channels, height, width = x.shape[1:]
    taps, hits = [], []
    for number, (extent, steps) in enumerate(((height, size[0]), (width, size[1]))):
        last = op.dimension(extent, wide) - 1.0
        start, end = ((corners[:, n] * last).expand_dims(1) for n in (number, number + 2))
        if steps == 1:
            place = (start + end) * 0.5
        else:
            place = start + line(op, steps, wide) * ((end - start) / (op.dimension(steps, wide) - 1.0))
        hits.append((place >= 0.0) & (place <= last))
        place = hits[-1].where(place, 0.0)
        taps.append(_taps(place, mode))
    pixels = x.transpose((0, 2, 3, 1)).reshape(x.shape[0] * height * width, channels)
    image = batch.cast(i64).reshape(count, 1, 1)
    total: Any = None
    for row, row_weight in taps[0]:
        for column, column_weight in taps[1]:
            place = row.cast(i64).expand_dims(2) * op.dimension(width, i64) + column.cast(i64).expand_dims(1)
            part = pixels.apply(Gather(0), image * op.dimension(height * width, i64) + place)
            if row_weight is not None:
                part = part * (row_weight.expand_dims(2) * column_weight.expand_dims(1)).expand_dims(3).cast(part.dtype)
            total = part if total is None else total + part
    inside = (hits[0].expand_dims(2) & hits[1].expand_dims(1)).expand_dims(3)
    return inside.where(total, op.get("extrapolation_value", 0.0)).transpose((0, 3, 1, 2))


def _taps(place: Any, mode: str) -> list[tuple[Any, Any]]:
    """The neighbours of places of one axis, with their weights."""
    if mode == "nearest":
        return [((place + 0.5).floor(), None)]
    low = place.floor()
    return [(low, 1.0 - (place - low)), (place.ceil(), place - low)]
