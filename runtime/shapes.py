"""Symbolic dims: bound from the shapes of a call's arguments, made a plan by the program's own functions.

A `Plan` holds all that depends on dims and on nothing else: shapes, sizes, scratch bytes.  Programs without
symbolic dims have exactly one; others keep the plans of recent dims, so that a repeated shape costs a
lookup.
"""

from __future__ import annotations

import array
import ctypes
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ingot.runtime import abi
from ingot.runtime.errors import ArgumentError, ProgramFormatError
from ingot.runtime.loader import LoadedImage
from ingot.runtime.manifest import DimSpec, Manifest, TensorSpec
from ingot.runtime.storage import WORTH_ALIGNING

_MAXIMUM_PLANS = 256
_ARENA_BYTES = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_SHAPES = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about a call that its dims determine."""

    dims: array.array
    arena_bytes: int
    input_shapes: Sequence[Shape]
    state_shapes: Sequence[Shape]
    output_shapes: Sequence[Shape]
    results: Sequence[tuple[Shape, np.dtype, int]]  # shape, dtype, bytes of what a call returns
    input_dtypes: Sequence[np.dtype]
    checks: array.array  # the same as `ingot_call` takes it: for each input its dtype, its rank, its extents
    small_result: tuple[Shape, np.dtype] | None  # the only result, if it is not worth aligning


class Planner:
    """Makes and keeps the plans of one program."""

    def __init__(self, manifest: Manifest, image: LoadedImage) -> None:
        self._manifest = manifest
        self._image = image
        self._arena_bytes = _ARENA_BYTES(image.address(abi.ARENA_BYTES))
        self._shapes = _SHAPES(image.address(abi.SHAPES))
        self._groups = (manifest.inputs, manifest.states, manifest.outputs)
        self._plans: dict[Shape, Plan] = {}
        self._sources = [_source(dim, manifest) for dim in manifest.dims]
        self.static: Plan | None = None
        if not manifest.dims:
            self.static = self.plan(())
            _check_static(manifest, self.static)

    def bind(self, inputs: Sequence[np.ndarray], states: Sequence[np.ndarray]) -> Plan:
        """The plan for the dims that these arrays have."""
        groups = (inputs, states)
        try:
            key = tuple([groups[group][index].shape[axis] for group, index, axis in self._sources])
        except IndexError:
            raise self._rank_error(groups) from None
        return self._plans.get(key) or self.plan(key)

    def plan(self, dims: Shape) -> Plan:
        """The plan for given values of the dims, in manifest order."""
        known = self._plans.get(dims)
        if known is not None:
            return known
        self._check_bounds(dims)
        plan = self._make(dims)
        if len(self._plans) >= _MAXIMUM_PLANS:
            self._plans.clear()
        self._plans[dims] = plan
        return plan

    def _check_bounds(self, dims: Shape) -> None:
        for dim, value in zip(self._manifest.dims, dims, strict=True):
            if value < dim.lower or (dim.upper is not None and value > dim.upper):
                raise ArgumentError(
                    f"dim {dim.name!r} is {value}, the program was compiled for {dim}; compile it with other bounds"
                )

    def _make(self, dims: Shape) -> Plan:
        values = array.array("q", dims or (0,))
        address = values.buffer_info()[0]
        arena_bytes = self._arena_bytes(address)
        inputs, states, outputs = self._compute_shapes(address)
        results = [
            (shape, spec.numpy_dtype, _bytes(spec, shape))
            for spec, shape in zip(self._manifest.outputs, outputs, strict=True)
            if spec.name not in self._manifest.aliases
        ]
        if not 0 <= arena_bytes <= sys.maxsize:
            raise ArgumentError(f"these shapes need more scratch memory than there are addresses: {self.named(dims)}")
        dtypes = [spec.numpy_dtype for spec in self._manifest.inputs]
        checks = array.array("Q")
        for dtype, shape in zip(dtypes, inputs, strict=True):
            checks.extend((id(dtype), len(shape), *shape))
        small = results[0][:2] if len(results) == 1 and results[0][2] < WORTH_ALIGNING else None
        return Plan(values, arena_bytes, inputs, states, outputs, results, dtypes, checks, small)

    def named(self, dims: Sequence[int]) -> dict[str, int]:
        return {dim.name: value for dim, value in zip(self._manifest.dims, dims, strict=False)}

    def _compute_shapes(self, dims_address: int) -> list[list[Shape]]:
        ranks = [[len(spec.shape) for spec in group] for group in self._groups]
        extents = array.array("q", bytes(8 * max(1, sum(map(sum, ranks)))))
        self._shapes(dims_address, extents.buffer_info()[0])
        remaining = iter(extents)
        return [[tuple(next(remaining) for _ in range(rank)) for rank in group] for group in ranks]

    def _rank_error(self, groups: tuple[Sequence[np.ndarray], ...]) -> ArgumentError:
        for group, index, axis in self._sources:
            spec, found = self._groups[group][index], groups[group][index].shape
            if axis >= len(found):
                return ArgumentError(f"{spec.name!r} must have {len(spec.shape)} axes ({spec}), got {list(found)}")
        raise AssertionError("some source lies outside its array")


def _source(dim: DimSpec, manifest: Manifest) -> tuple[int, int, int]:
    """Where a dim's value comes from: (0 input or 1 state, which one, axis)."""
    for group, specs in enumerate((manifest.inputs, manifest.states)):
        for index, spec in enumerate(specs):
            if dim.name in spec.shape:
                return group, index, spec.shape.index(dim.name)
    raise AssertionError("manifests without a source for a dim are rejected")


def _bytes(spec: TensorSpec, shape: Shape) -> int:
    itemsize = spec.numpy_dtype.itemsize
    spanned = math.prod(extent or 1 for extent in shape) * itemsize  # NumPy limits this, also of an array without elements
    if min(shape, default=0) < 0 or spanned > sys.maxsize:
        raise ArgumentError(f"output {spec} would have the impossible shape {list(shape)}")
    return math.prod(shape) * itemsize


def _check_static(manifest: Manifest, plan: Plan) -> None:
    declared = [spec.static_shape for spec in (*manifest.inputs, *manifest.states, *manifest.outputs)]
    computed = [*plan.input_shapes, *plan.state_shapes, *plan.output_shapes]
    if declared != computed:
        raise ProgramFormatError("the program's code and its manifest disagree about shapes; compile it again")
