"""C text beside the machine code: the library's functions, the weights' section, the description for main programs.

Nothing here decides anything; it spells a manifest in C.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import Template

from ingot.compiler.errors import Code, IngotValueError
from ingot.frontends.native.header import Interface
from ingot.frontends.native.names import C_TYPES, NPY_CODES, SAFETENSORS_CODES, text, type_text
from ingot.runtime.abi import FAILURES
from ingot.runtime.cpu import required_flags
from ingot.runtime.manifest import TensorSpec


@dataclass(frozen=True)
class Blob:
    """Arrays one after another, and where each begins."""

    data: bytes
    offsets: tuple[int, ...]


def prefix_of(name: str) -> str:
    """Of the symbols that are no part of the interface."""
    return f"{name}__"


def library_text(interface: Interface, constants: Blob, initial: Blob) -> str:
    """The functions that the header declares, and one by which the main programs call."""
    manifest, name = interface.manifest, interface.name
    inputs, results, dims = interface.variables
    count = len(manifest.inputs) + len(manifest.states) + len(manifest.constants) + len(manifest.outputs)
    return _LIBRARY.substitute(
        name=name,
        prefix=prefix_of(name),
        verb=interface.verb,
        parameters=interface.parameters,
        sites=_array(map(text, manifest.sites)),
        site_count=len(manifest.sites),
        failures="\n".join(_failure(code) for code in FAILURES),
        offsets=_array(f"{offset}u" for offset in constants.offsets),
        counts=f"inputs_ = {len(manifest.inputs)}, states_ = {len(manifest.states)}, "
        f"constants_ = {len(manifest.constants)}, outputs_ = {len(manifest.outputs)}",
        count=max(1, count),
        dims=interface.dims or "void",
        shape_dims=f"{interface.dims}, " if dims else "",
        dim_values=_array(dims),
        bounds="".join(_bounds(d.name, n, d.lower, d.upper) for d, n in zip(manifest.dims, dims, strict=True)),
        inputs=_array(f"(void *){n}" for n in inputs),
        outputs=_array(_outputs(interface, results)),
        states="states" if manifest.states else "NULL",
        state_functions=_state_functions(interface, initial) if manifest.states else "",
    )


def _outputs(interface: Interface, results: Sequence[str]) -> Iterable[str]:
    places = {spec.name: n for n, spec in enumerate(interface.manifest.states)}
    remaining = iter(results)
    for spec in interface.manifest.outputs:
        state = interface.manifest.aliases.get(spec.name)
        yield next(remaining) if state is None else f"states[{places[state]}]"


def _failure(code: int) -> str:
    """A case of the switch that puts a failure in words."""
    failure = FAILURES[code]
    values = ", ".join(f"(long long)details[{'abc'.index(n)}]" for n in re.findall(r"{([abc])}", failure.template))
    wording = re.sub(r"{[abc]}", "%lld", failure.template.replace("%", "%%"))
    arguments = f"{values}, " if values else ""
    return (
        f"    case {int(code)}: snprintf(message, sizeof message, {text(wording + '%s%s; ' + failure.advice)}, "
        f"{arguments}where, site); break;"
    )


def _bounds(dim: str, variable: str, lower: int, upper: int | None) -> str:
    test = f"{variable} < {lower}" + ("" if upper is None else f" || {variable} > {upper}")
    wording = f"{dim} is %lld, the program was compiled for {dim} >= {lower}"
    wording += "" if upper is None else f" and <= {upper}"
    return (
        f"    if ({test}) {{\n        snprintf(message, sizeof message, {text(wording)}, (long long){variable});\n"
        "        return -1;\n    }\n"
    )


def _state_functions(interface: Interface, initial: Blob) -> str:
    name, states = interface.name, interface.manifest.states
    shapes = "".join(f"static const int64_t state_shape_{n}[] = {_array(_extents(s))};\n" for n, s in enumerate(states))
    rows = (
        f"\n    {{{text(s.name)}, {text(s.dtype)}, {len(s.shape)}, state_shape_{n}, {bytes_of(s)}, "
        f"{prefix_of(name)}initial + {offset}u}}"
        for n, (s, offset) in enumerate(zip(states, initial.offsets, strict=True))
    )
    return _STATES.substitute(name=name, prefix=prefix_of(name), shapes=shapes, rows=_array(rows), count=len(states))


def weights_text(name: str) -> str:
    """Assembly that puts the two blobs into the read-only data of a program."""
    sections = "".join(
        f".balign 64\n.globl {symbol}\n.hidden {symbol}\n.type {symbol}, %object\n{symbol}:\n"
        f'.incbin "{part}.bin"\n.byte 0\n.size {symbol}, . - {symbol}\n'
        for part in ("constants", "initial")
        for symbol in (prefix_of(name) + part,)
    )
    return f'.section .rodata,"a",%progbits\n{sections}.section .note.GNU-stack,"",%progbits\n'


# --- the description for main programs ---------------------------------------------------------------


def description_text(interface: Interface, initial: Blob, model: str) -> str:
    manifest, name = interface.manifest, interface.name
    groups = (manifest.inputs, manifest.states, manifest.outputs)
    used = sorted({spec.dtype for group in groups for spec in group})
    states = {spec.name: n for n, spec in enumerate(manifest.states)}
    tables = []
    for label, group in zip(("input", "state", "output"), groups, strict=True):
        rows = []
        for n, spec in enumerate(group):
            tables.append(f"static const int64_t {label}_extents_{n}[] = {_array(_extents(spec))};\n")
            updated = states.get(manifest.aliases.get(spec.name, ""), -1) if label == "output" else -1
            value = f"{prefix_of(name)}initial + {initial.offsets[n]}u" if label == "state" else "NULL"
            rows.append(
                f"\n    {{{text(spec.name)}, {text(_file_name(spec.name))}, {text(type_text(spec))}, "
                f"&dtype_{spec.dtype}, {len(spec.shape)}, {label}_extents_{n}, {updated}, {value}}}"
            )
        empty = "{NULL, NULL, NULL, NULL, 0, NULL, -1, NULL}"
        tables.append(f"static const ingot_tensor {label}s[] = {_array(rows, empty)};\n")
    return _DESCRIPTION.substitute(
        name=name,
        prefix=prefix_of(name),
        dtypes="".join(_dtype(d) for d in used),
        tables="".join(tables),
        dims=_array(_dim_rows(interface), "{NULL, 0, 0, 0, 0}"),
        flags=_array([*map(text, required_flags(manifest.target.features)), "NULL"]),
        counts=", ".join(str(len(group)) for group in groups),
        dim_count=len(manifest.dims),
        extent_count=sum(len(spec.shape) for group in groups for spec in group),
        processor=text(manifest.target.cpu or manifest.target.triple),
        checkpoint=text(_checkpoint_tensors(manifest.states)),
        order=_array(map(str, _checkpoint_order(manifest.states))),
        model=text(json.dumps(model)),
        initial_declaration=f"extern const unsigned char {prefix_of(name)}initial[];" if manifest.states else "",
    )


def _dtype(name: str) -> str:
    fields = ", ".join(text(table[name]) for table in (NPY_CODES, SAFETENSORS_CODES))
    return f"static const ingot_dtype dtype_{name} = {{{text(name)}, {fields}, sizeof({C_TYPES[name]})}};\n"


def _dim_rows(interface: Interface) -> Iterable[str]:
    for dim in interface.manifest.dims:
        places = [(n, s.shape.index(dim.name)) for n, s in enumerate(interface.manifest.inputs) if dim.name in s.shape]
        if not places:
            raise IngotValueError(Code.NOT_BUILDABLE, f"no input has an axis of extent {dim.name}")
        upper = -1 if dim.upper is None else dim.upper
        yield f"{{{text(dim.name)}, {dim.lower}, {upper}, {places[0][0]}, {places[0][1]}}}"


def _checkpoint_order(states: Sequence[TensorSpec]) -> list[int]:
    """Wide elements first, so that each tensor is aligned in the file."""
    return sorted(range(len(states)), key=lambda n: (-states[n].numpy_dtype.itemsize, states[n].name))


def _checkpoint_tensors(states: Sequence[TensorSpec]) -> str:
    entries, place = [], 0
    for n in _checkpoint_order(states):
        spec = states[n]
        end = place + bytes_of(spec)
        fields = {"dtype": SAFETENSORS_CODES[spec.dtype], "shape": list(spec.shape), "data_offsets": [place, end]}
        entries.append(f"{json.dumps(spec.name)}:{json.dumps(fields, separators=(',', ':'))}")
        place = end
    return ",".join(entries) + "}"


def bytes_of(spec: TensorSpec) -> int:
    """Of a tensor without symbolic dims."""
    size = spec.numpy_dtype.itemsize
    for extent in spec.shape:
        if not isinstance(extent, int):
            raise IngotValueError(Code.NOT_BUILDABLE, f"state {spec} has a symbolic extent, so its size is not known")
        size *= extent
    return size


def _extents(spec: TensorSpec) -> Iterable[str]:
    return (str(extent) if isinstance(extent, int) else "-1" for extent in spec.shape)


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.\-]", "_", name) or "_"


def _array(items: Iterable[str], empty: str = "0") -> str:
    """An initialiser; C has no empty ones."""
    return "{" + (", ".join(items) or empty) + "}"


_LIBRARY = Template("""\
#include "$name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

int32_t ${prefix}ingot_entry(void **buffers, const int64_t *dims, void *arena, void *pool, int64_t *failure);
int64_t ${prefix}ingot_arena_bytes(const int64_t *dims);
void ${prefix}ingot_shapes(const int64_t *dims, int64_t *extents);
void *${prefix}ingot_pool_create(int32_t threads);
void ${prefix}ingot_pool_destroy(void *pool);
int ${prefix}call(void *const *inputs, void *const *states, void *const *outputs, const int64_t *dims, void *arena,
                  void *pool);
extern const unsigned char ${prefix}constants[];

enum { $counts };
static const uint64_t constant_offsets[] = $offsets;
static const char *const sites[] = $sites;
static __thread char message[1024];

static int describe(int code, const int64_t *details) {
    int has_site = details[3] >= 0 && details[3] < $site_count;
    const char *where = has_site ? " in " : "", *site = has_site ? sites[details[3]] : "";
    switch (code) {
$failures
    default: snprintf(message, sizeof message, "the program stopped%s%s with failure %d", where, site, code);
    }
    return code;
}

int ${prefix}call(void *const *inputs, void *const *states, void *const *outputs, const int64_t *dims, void *arena,
                  void *pool) {
    void *buffers[$count] = {NULL};
    int n = 0;
    for (int k = 0; k < inputs_; k++) buffers[n++] = inputs[k];
    for (int k = 0; k < states_; k++) buffers[n++] = states[k];
    for (int k = 0; k < constants_; k++) buffers[n++] = (void *)(${prefix}constants + constant_offsets[k]);
    for (int k = 0; k < outputs_; k++) buffers[n++] = outputs[k];
    int64_t details[4] = {0, 0, 0, -1};
    int code = ${prefix}ingot_entry(buffers, dims, arena, pool, details);
    return code ? describe(code, details) : 0;
}

PUBLIC int ${name}_$verb($parameters) {
    const int64_t dims[] = $dim_values;
    void *const inputs[] = $inputs, *const outputs[] = $outputs;
    void *scratch = arena;
$bounds    if (!scratch) {
        int64_t bytes = ${prefix}ingot_arena_bytes(dims);
        if (bytes < 0 || posix_memalign(&scratch, 64, bytes ? (size_t)bytes : 64)) {
            snprintf(message, sizeof message, "no room for %lld bytes of scratch memory", (long long)bytes);
            return -2;
        }
    }
    int code = ${prefix}call(inputs, $states, outputs, dims, scratch, threads);
    if (!arena) free(scratch);
    return code;
}

PUBLIC int64_t ${name}_arena_bytes($dims) {
    const int64_t dims[] = $dim_values;
    return ${prefix}ingot_arena_bytes(dims);
}

PUBLIC void ${name}_shapes(${shape_dims}int64_t *extents) {
    const int64_t dims[] = $dim_values;
    ${prefix}ingot_shapes(dims, extents);
}

PUBLIC ${name}_threads *${name}_threads_create(int32_t count) {
    return (${name}_threads *)${prefix}ingot_pool_create(count);
}

PUBLIC void ${name}_threads_destroy(${name}_threads *threads) {
    if (threads) ${prefix}ingot_pool_destroy(threads);
}

PUBLIC const char *${name}_error(void) { return message; }
$state_functions""")

_STATES = Template("""
extern const unsigned char ${prefix}initial[];
$shapes
PUBLIC const ${name}_state ${name}_state_table[] = $rows;

PUBLIC void ${name}_states_destroy(void **states) {
    for (int n = 0; states && n < $count; n++) free(states[n]);
    free(states);
}

PUBLIC void **${name}_states_create(void) {
    void **states = calloc($count, sizeof(void *));
    for (int n = 0; states && n < $count; n++) {
        size_t bytes = (size_t)${name}_state_table[n].bytes;
        if (posix_memalign(&states[n], 64, bytes ? bytes : 64)) {
            ${name}_states_destroy(states);
            return NULL;
        }
        memcpy(states[n], ${name}_state_table[n].initial, bytes);
    }
    return states;
}
""")

_DESCRIPTION = Template("""\
#include "ingot_program.h"

#include "$name.h"

int ${prefix}call(void *const *inputs, void *const *states, void *const *outputs, const int64_t *dims, void *arena,
                  void *pool);
int64_t ${prefix}ingot_arena_bytes(const int64_t *dims);
void ${prefix}ingot_shapes(const int64_t *dims, int64_t *extents);
void *${prefix}ingot_pool_create(int32_t threads);
$initial_declaration

$dtypes$tables
static const ingot_dim dims[] = $dims;
static const char *const flags[] = $flags;
static const int order[] = $order;

const ingot_program ingot_description = {
    "$name", inputs, states, outputs, $counts, dims, $dim_count, $extent_count, flags, $processor,
    $checkpoint,
    order, $model,
    ${prefix}call, ${prefix}ingot_arena_bytes, ${prefix}ingot_shapes, ${prefix}ingot_pool_create, ${name}_error,
};
""")
