"""A program that can be called: NumPy arrays in, NumPy arrays out.

A call allocates its outputs and makes one foreign call, which checks the arguments and fills a table of pointers; a
microsecond or two in all.  What does not change between calls (pointers of constants and states, shapes, the arena) is
kept in contexts, one per call in flight, so several Python threads may call one executable at once.
Programs that update states run one call at a time.

Invariant: memory that a program writes is never memory it was given as an input.
"""

from __future__ import annotations

import array
import bisect
import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ingot.runtime import abi
from ingot.runtime.abi import Word
from ingot.runtime.arguments import check_shape, check_target, convert_argument, order_arguments
from ingot.runtime.context import Context
from ingot.runtime.errors import ArgumentError, ExecutionError, IngotRuntimeError, OutOfMemoryError
from ingot.runtime.loader import LoadedImage
from ingot.runtime.manifest import DimSpec, TensorSpec
from ingot.runtime.profile import Profile
from ingot.runtime.program import PathLike, Program
from ingot.runtime.report import Report
from ingot.runtime.shapes import Plan, Planner
from ingot.runtime.storage import address_of, aligned_copies, aligned_empty, result_array
from ingot.runtime.threads import PoolHandle, shared_pool, thread_limit

_CALL = ctypes.CFUNCTYPE(ctypes.c_int32)  # no declared arguments: a reference needs no conversion
_ARRAY = np.ndarray
_EMPTY = np.empty
_ARGUMENTS, _RESULTS, _POOL = int(Word.ARGUMENTS), int(Word.RESULTS), int(Word.POOL)


class Executable:
    """A loaded program; make one with `ingot.compile` or `ingot.load`. `states` are bound from the start, so that no
    memory is made for them."""

    def __init__(
        self, program: Program, threads: int | None = None, states: Mapping[str, np.ndarray] | None = None
    ) -> None:
        if threads is not None and threads < 1:
            raise ArgumentError(f"threads must be at least 1, got {threads}")
        program.check_target()
        manifest = program.manifest
        self.program = program
        self.threads = threads if threads is not None else thread_limit()
        self._image = LoadedImage(program.image)
        self._planner = Planner(manifest, self._image)
        self._call = _CALL(self._image.address(abi.CALL))
        self._pool: PoolHandle | None = None
        if manifest.parallel and self.threads > 1:
            self._pool = shared_pool(self._image, self.threads)
        self._input_count = len(manifest.inputs)
        first_output = self._input_count + len(manifest.states) + len(manifest.constants)
        self._result_slots = [
            first_output + index for index, spec in enumerate(manifest.outputs) if spec.name not in manifest.aliases
        ]
        self._arrange: Callable[[Any], Any] | None = None  # what callers get, made of what the program returns
        self._constants = aligned_copies([program.constants[spec.name] for spec in manifest.constants])
        given = states or {}
        first = (
            (spec.name, given[spec.name] if spec.name in given else self._initial(spec)) for spec in manifest.states
        )
        self._states = {name: state for name, state in first if state is not None}
        self._lock = threading.Lock() if manifest.aliases else None
        self._symbolic_states = [spec for spec in manifest.states if spec.static_shape is None]
        self.bind_states(given)

    # What it is

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Names and types of the arguments, in order."""
        return self.program.manifest.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Names and types of what a call returns, in order."""
        manifest = self.program.manifest
        return tuple(spec for spec in manifest.outputs if spec.name not in manifest.aliases)

    @property
    def dims(self) -> tuple[DimSpec, ...]:
        """Symbolic dims with their bounds."""
        return self.program.manifest.dims

    @property
    def states(self) -> Mapping[str, np.ndarray]:
        """The arrays that the program keeps and updates between calls; writing to them is allowed."""
        return MappingProxyType(self._states)

    @property
    def peak_bytes(self) -> int | None:
        """Scratch bytes of a call: exact, or those at the upper bounds of the dims.

        None when a dim has no upper bound, or one that no memory can hold.
        """
        bounds = tuple(dim.upper for dim in self.dims if dim.upper is not None)
        if len(bounds) != len(self.dims):
            return None
        try:
            return self._planner.plan(bounds).arena_bytes
        except ArgumentError:
            return None

    def peak_bytes_for(self, **dims: int) -> int:
        """Scratch bytes of a call with these dims."""
        names = [dim.name for dim in self.dims]
        if sorted(dims) != sorted(names):
            raise ArgumentError(f"give a value for each of the dims {', '.join(names) or '(there are none)'}")
        return self._planner.plan(tuple(dims[name] for name in names)).arena_bytes

    def __repr__(self) -> str:
        def listed(specs: Sequence[TensorSpec]) -> str:
            return ", ".join(map(str, specs))

        return f"Executable({listed(self.inputs)}) -> ({listed(self.outputs)})"

    def save(self, path: PathLike) -> None:
        """Write the program, with the values its states have now, for `ingot.load`."""
        symbolic = {spec.name for spec in self._symbolic_states}
        states = {name: state for name, state in self._states.items() if name not in symbolic}
        manifest, image, constants = self.program.manifest, self.program.image, self.program.constants
        Program(manifest, image, constants, states).save(path)

    def explain(self) -> Report:
        """What the compiler did, and why."""
        return Report.of(self.program.manifest, self.peak_bytes)

    # Calling it

    def __call__(
        self, *args: object, out: np.ndarray | Sequence[np.ndarray | None] | None = None, **kwargs: object
    ) -> Any:
        """Run the program; one output comes back as an array, several as a tuple, none as None.

        `out`: an array (or a sequence of arrays or None) to write the outputs into.
        """
        if self._lock is None:
            result = self._run(self._contexts, args, kwargs, out)
        else:
            result = self._run_alone(self._contexts, args, kwargs, out)
        return result if self._arrange is None else self._arrange(result)

    def profile(self, *args: object, repeat: int = 10, **kwargs: object) -> Profile:
        """Run the program `repeat` times after one warm-up and tell how long each kernel took."""
        if abi.ENTRY_PROFILE not in self._image:
            raise IngotRuntimeError("this program has no profiling entry point; compile it with profile=True")
        kernels = self.program.manifest.kernels
        times = array.array("q", bytes(8 * max(1, len(kernels))))
        contexts = [self._new_context(abi.ENTRY_PROFILE, times.buffer_info()[0])]
        self._run_alone(contexts, args, kwargs, None)
        times[:] = array.array("q", bytes(8 * len(times)))
        start = time.perf_counter_ns()
        for _ in range(repeat):
            self._run_alone(contexts, args, kwargs, None)
        return Profile.of(kernels, times, time.perf_counter_ns() - start, repeat)

    def bind_states(self, values: Mapping[str, np.ndarray]) -> None:
        """Use these arrays as states, sharing their memory: updates by the program are seen in them."""
        specs = {spec.name: spec for spec in self.program.manifest.states}
        for name, value in values.items():
            spec = specs.get(name)
            if spec is None:
                raise ArgumentError(f"there is no state {name!r}; the states are {', '.join(specs) or 'none'}")
            check_target(spec, value, "state")
            if spec.static_shape is not None:
                check_shape(spec, value.shape, spec.static_shape, {})
        self._states.update(values)
        self._prepare_states()

    def bind_state(self, name: str, value: np.ndarray) -> None:
        """Use this array as a state, sharing its memory: updates by the program are seen in it."""
        self.bind_states({name: value})

    def _run_alone(self, *call: Any) -> Any:
        """Run the program while nobody else changes its states."""
        with self._lock or contextlib.nullcontext():
            return self._run(*call)

    def _run(self, contexts: list[Context], args: tuple[Any, ...], kwargs: dict[str, object], out: Any) -> Any:
        # The path of every call: one function, because a layer takes as long as anything in it; whatever is rare is a
        # function of its own. Arguments are checked by `ingot_call`.
        if kwargs or len(args) != self._input_count:
            args = tuple(order_arguments(self.inputs, args, kwargs))
        plan = self._planner.static
        if plan is None:
            args, plan = self._bind(args)
        try:
            context = contexts.pop()  # one that nobody else uses
        except IndexError:
            context = self._new_context(abi.ENTRY)
        try:
            if context.plan is not plan:
                context.use(plan)
            if self._states:
                args = self._guard_states(plan, self._usable(plan, args))
            if out is not None:
                args = self._usable(plan, args)
                results = self._check_out(plan, out, args)
            elif plan.small_result is not None:
                results = (_EMPTY(*plan.small_result),)
            else:
                results = _allocate(plan)
            words = context.words
            words[_ARGUMENTS] = id(args)
            words[_RESULTS] = id(results)
            if self._pool is not None:
                words[_POOL] = self._pool.address or self._pool.renew()
            code = self._call(context.reference)
            if code:
                if code == abi.UNUSUAL:
                    args = self._converted(plan, args)
                    words[_ARGUMENTS] = id(args)
                    code = self._call(context.reference)
                if code:
                    raise self._failure(code, context)
        finally:
            contexts.append(context)
        if len(results) == 1:
            return results[0]
        return results or None

    def _bind(self, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], Plan]:
        """The plan for the dims of these arguments; they come back as arrays."""
        for value in args:
            if type(value) is not _ARRAY:
                args = tuple(map(convert_argument, self.inputs, args))
                break
        if len(self._states) != len(self._state_list):
            self._require_states()
        return args, self._planner.bind(args, self._state_list)

    def _usable(self, plan: Plan, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments as arrays whose memory is theirs from first to last byte."""
        for value in args:
            if type(value) is not _ARRAY or value.flags.num & abi.USABLE != abi.USABLE:
                return self._converted(plan, args)
        return args

    def _converted(self, plan: Plan, args: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
        """Arguments that are not just what the program reads: converted, copied, or refused."""
        arrays = []
        for spec, value, shape, dtype in zip(self.inputs, args, plan.input_shapes, plan.input_dtypes, strict=True):
            converted = convert_argument(spec, value)
            check_shape(spec, converted.shape, shape, self._named(plan))
            arrays.append(converted if converted.dtype is dtype else converted.view(dtype))
        return tuple(arrays)

    def _new_context(self, entry: str, times: int = 0) -> Context:
        return Context(self._image.address(entry), self._pointers, self._result_slots, times)

    def _failure(self, code: int, context: Context) -> ExecutionError:
        details = tuple(context.failure)
        return ExecutionError(abi.describe_failure(code, details, self.program.manifest.sites), code, details)

    def _check_out(self, plan: Plan, out: Any, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        given = [out] if type(out) is _ARRAY else [out] if isinstance(out, _ARRAY) else list(out)
        if len(given) != len(plan.results):
            raise ArgumentError(f"out has {len(given)} arrays, the program returns {len(plan.results)}")
        taken = self._state_ranges
        for index, (shape, dtype, size) in enumerate(plan.results):
            value = given[index]
            if value is None:
                given[index] = result_array(shape, dtype, size)
                continue
            if type(value) is not _ARRAY or value.dtype is not dtype or value.shape != shape or not value.flags.carray:
                check_target(self.outputs[index], value, "output")
                check_shape(self.outputs[index], value.shape, shape, self._named(plan))
            start = address_of(value)
            end = start + size
            for other in arrays:
                other_start = address_of(other)
                if other_start < end and start < other_start + other.nbytes and size:
                    self._refuse_shared(index)
            for other_start, other_end in taken:
                if other_start < end and start < other_end and size:
                    self._refuse_shared(index)
            if len(given) > 1:
                taken = [*taken, (start, end)]
        return tuple(given)

    def _refuse_shared(self, index: int) -> None:
        name = self.outputs[index].name
        raise ArgumentError(f"output {name!r} shares memory with an input, a state or another output")

    # States

    def _initial(self, spec: TensorSpec) -> np.ndarray | None:
        """A state's first array; None when its shape is known only once an array is bound to it."""
        shape = spec.static_shape
        if shape is None:
            return None
        initial = self.program.initial_states.get(spec.name)
        size = int(np.prod(shape, dtype=np.int64)) * spec.numpy_dtype.itemsize
        state = aligned_empty(shape, spec.numpy_dtype, size)
        state[...] = 0 if initial is None else initial
        return state

    def _prepare_states(self) -> None:
        """Derive from the states' arrays what a call needs; contexts made before point to former ones and are dropped,
        those in flight when they come back."""
        manifest = self.program.manifest
        empty = np.empty(0, np.uint8)
        self._state_list = [self._states.get(spec.name, empty) for spec in manifest.states]
        states = dict(zip([spec.name for spec in manifest.states], self._state_list, strict=True))
        aliased = [manifest.aliases.get(spec.name) for spec in manifest.outputs]
        self._pointers = [
            *([0] * self._input_count),
            *map(address_of, self._state_list),
            *map(address_of, self._constants),
            *(0 if name is None else address_of(states[name]) for name in aliased),
        ]
        self._state_ranges = [(address_of(s), address_of(s) + s.nbytes) for s in self._state_list if s.size]
        mutable = [states[name] for name in manifest.aliases.values() if states[name].size]
        ranges = sorted((address_of(state), address_of(state) + state.nbytes) for state in mutable)
        self._mutable_starts = [start for start, _ in ranges]
        self._mutable_ends = [end for _, end in ranges]
        self._contexts: list[Context] = []

    def _require_states(self) -> None:
        for spec in self._symbolic_states:
            if spec.name not in self._states:
                raise ArgumentError(f"state {spec} has symbolic dims; give it an array with bind_state first")

    def _guard_states(self, plan: Plan, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """Check states whose shape depends on dims; copy inputs that are states about to be changed."""
        for spec in self._symbolic_states:
            index = self.program.manifest.states.index(spec)
            check_shape(spec, self._states[spec.name].shape, plan.state_shapes[index], self._named(plan))
        if self._mutable_starts:
            return tuple([self._apart_from_states(value) for value in arrays])
        return arrays

    def _apart_from_states(self, value: np.ndarray) -> np.ndarray:
        """The value, copied when it overlaps a state that the program is about to change."""
        start = address_of(value)
        following = bisect.bisect_left(self._mutable_starts, start + value.nbytes)
        if following and self._mutable_ends[following - 1] > start:
            return value.copy()
        return value

    def _named(self, plan: Plan) -> dict[str, int]:
        return self._planner.named(plan.dims)


def _allocate(plan: Plan) -> tuple[np.ndarray, ...]:
    try:
        return tuple([result_array(shape, dtype, size) for shape, dtype, size in plan.results])
    except MemoryError:
        sizes = sum(size for _, _, size in plan.results)
        raise OutOfMemoryError(f"no room for outputs of {sizes} bytes") from None


def load(path: PathLike, threads: int | None = None, verify: bool = False) -> Executable:
    """Load a saved program; `verify` also compares the checksums of its weights."""
    return Executable(Program.load(os.fspath(path), verify), threads)
