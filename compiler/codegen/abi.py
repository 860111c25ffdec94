"""How generated functions call one another. (`runtime/abi.py` says how a program is called from outside.)

A kernel is

    void name(ptr buffer..., i64 dim..., ptr pool, ptr failure)

- one pointer per parameter, in order, aligned to the size of an element;
- one i64 per symbolic dim whose value the function or a function it calls needs, sorted by name (`dims_of`);
- the thread pool, or null;
- the failure record: i64[5] = {code, a, b, c, site}, all zero before the call (null when the kernel cannot fail). The
  first failure of the call wins the exchange on `code` and fills in the rest: `ingot_fail`. `site` is an index into the
  callee's own sites (`Kernel.sites`); the entry point adds where these start in the program's table. After a failure
  the kernel stops at once and its outputs are undefined.

The body of a parallel loop is `void name.parallelN(ptr context, i64 index)`; `context` is an array of 8-byte slots on
the caller's stack, one for each value of the enclosing function that the body uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ingot.compiler.ir import loops, traverse
from ingot.compiler.ir.symbolic import Symbol

FAIL = "ingot_fail"
FAILURE_CODE, FAILURE_DETAILS, FAILURE_SITE = 0, 1, 4
RECORD_WORDS = 5

# Defines FAIL. Its own module, linked once; cold, so kernels keep their registers for what happens.
SUPPORT = f"""\
define hidden void @{FAIL}(ptr %record, i64 %code, i64 %a, i64 %b, i64 %c, i64 %site) cold noinline nounwind {{
  %exchange = cmpxchg ptr %record, i64 0, i64 %code acq_rel acquire
  %first = extractvalue {{ i64, i1 }} %exchange, 1
  br i1 %first, label %fill, label %done
fill:
  %pa = getelementptr i64, ptr %record, i64 1
  store i64 %a, ptr %pa
  %pb = getelementptr i64, ptr %record, i64 2
  store i64 %b, ptr %pb
  %pc = getelementptr i64, ptr %record, i64 3
  store i64 %c, ptr %pc
  %ps = getelementptr i64, ptr %record, i64 4
  store i64 %site, ptr %ps
  br label %done
done:
  ret void
}}
"""


@dataclass(frozen=True)
class Kernel:
    """A function as LLVM IR: the text of its functions, and what they need declared, by name."""

    name: str
    body: str
    globals: Mapping[str, str]
    dims: tuple[Symbol, ...]  # passed after the buffers
    sites: tuple[str, ...]  # where it can fail; empty: it cannot

    @property
    def text(self) -> str:
        return module_text([self])


def module_text(kernels: Iterable[Kernel]) -> str:
    """One module of several kernels."""
    shared: dict[str, str] = {}
    bodies = []
    for kernel in kernels:
        shared.update(kernel.globals)
        bodies.append(kernel.body)
    return "\n".join([*shared.values(), *bodies, ""])


def dims_of(function: loops.Function) -> tuple[Symbol, ...]:
    """The symbols that are passed to a function, in order."""
    return traverse.function_symbols(function)
