"""The C header of a program: what a C or C++ program includes to call it."""

from __future__ import annotations

from dataclasses import dataclass
from string import Template

from ingot.frontends.native.names import C_TYPES, comment, identifiers, type_text
from ingot.runtime.manifest import Manifest, TensorSpec

_FIXED = ("arena", "threads", "states", "extents")


@dataclass(frozen=True)
class Interface:
    """A program's functions as C sees them."""

    name: str
    manifest: Manifest
    verb: str  # what a call does: run a model, step a trainer

    @property
    def results(self) -> list[TensorSpec]:
        """Outputs that the caller gives memory for; the others update states in place."""
        return [spec for spec in self.manifest.outputs if spec.name not in self.manifest.aliases]

    @property
    def variables(self) -> tuple[list[str], list[str], list[str]]:
        """C names of inputs, results and dims."""
        manifest = self.manifest
        specs = (*manifest.inputs, *self.results, *manifest.dims)
        names = identifiers([spec.name for spec in specs], _FIXED)
        first, second = len(manifest.inputs), len(manifest.inputs) + len(self.results)
        return names[:first], names[first:second], names[second:]

    @property
    def dims(self) -> str:
        return ", ".join(f"int64_t {name}" for name in self.variables[2])

    @property
    def parameters(self) -> str:
        inputs, results, dims = self.variables
        found = [f"const {C_TYPES[s.dtype]} *{n}" for s, n in zip(self.manifest.inputs, inputs, strict=True)]
        found += [f"{C_TYPES[s.dtype]} *{n}" for s, n in zip(self.results, results, strict=True)]
        found += [f"int64_t {name}" for name in dims]
        found += ["void *const *states"] if self.manifest.states else []
        return ", ".join([*found, "void *arena", f"{self.name}_threads *threads"])


def header_text(interface: Interface) -> str:
    name, manifest = interface.name, interface.manifest
    return _HEADER.substitute(
        name=name,
        guard=f"{name.upper()}_H",
        processor=comment(manifest.target.cpu or manifest.target.triple),
        verb=interface.verb,
        parameters=interface.parameters,
        arguments=_arguments(interface),
        dims=interface.dims or "void",
        shape_dims=f"{interface.dims}, " if interface.dims else "",
        order="input, then every state, then every output (also of those that update states)"
        if manifest.states
        else "input, then every output",
        extents=sum(len(spec.shape) for spec in (*manifest.inputs, *manifest.states, *manifest.outputs)),
        macro=name.upper(),
        states=Template(_STATES).substitute(name=name, macro=name.upper(), count=len(manifest.states))
        if manifest.states
        else "",
    )


def _arguments(interface: Interface) -> str:
    inputs, results, dims = interface.variables
    manifest = interface.manifest
    rows = [(n, type_text(s)) for s, n in zip(manifest.inputs, inputs, strict=True)]
    rows += [(n, f"{type_text(s)}, written") for s, n in zip(interface.results, results, strict=True)]
    rows += [(n, str(d)) for d, n in zip(manifest.dims, dims, strict=True)]
    if manifest.states:
        rows.append(("states", f"{interface.name}_states_create(): updated in place, unusable after a failure"))
    width = max((len(n) for n, _ in rows), default=0)
    return "".join(f"     {n:<{width}}  {comment(what)}\n" for n, what in rows)


_HEADER = Template("""\
/* $name: compiled by Ingot for $processor.

   Link with lib$name.a or lib$name.so, -lm and -lpthread; nothing else is needed.
   Tensors are C arrays in row-major order, aligned to the size of an element. Elements of type f16 and bf16 are
   uint16_t with their bits, those of type bool are uint8_t 0 or 1. */

#ifndef $guard
#define $guard

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ${name}_threads ${name}_threads;

/* Threads for calls, the calling one included; NULL when there can be none. The same bits come out for any number. */
${name}_threads *${name}_threads_create(int32_t count);
void ${name}_threads_destroy(${name}_threads *threads); /* no call may be running */
$states
/* Returns 0, or what went wrong as a number that is not 0; ${name}_error() says it in words.
$arguments     arena: ${name}_arena_bytes(...) bytes of scratch, 64-byte aligned; NULL: allocated for this call
     threads: NULL: this thread only
   Calls may run at the same time, each with outputs and an arena of its own. Inputs must not overlap outputs. */
int ${name}_$verb($parameters);

/* Bytes of scratch that a call with these dims uses; negative: more than there are addresses. */
int64_t ${name}_arena_bytes($dims);

/* Writes the extents of every $order, one after another. */
#define ${macro}_EXTENT_COUNT $extents
void ${name}_shapes(${shape_dims}int64_t *extents);

/* About the last call of this thread that failed. */
const char *${name}_error(void);

#ifdef __cplusplus
}
#endif
#endif
""")

_STATES = """
/* What is kept between calls: parameters, buffers, the optimiser's own. */
#define ${macro}_STATE_COUNT $count
typedef struct {
    const char *name;  /* as in checkpoints */
    const char *dtype; /* f32, i64, ... */
    int rank;
    const int64_t *shape;
    int64_t bytes;
    const void *initial; /* the value at the time of the build */
} ${name}_state;
extern const ${name}_state ${name}_state_table[${macro}_STATE_COUNT];

/* Memory for all states with their initial values; states[i] is what table entry i describes. NULL: no memory. */
void **${name}_states_create(void);
void ${name}_states_destroy(void **states);
"""
