"""docs/onnx_coverage.md, made from the registries and the list of exclusions: `python -m tests.frontends.onnx.coverage`.

test_coverage.py compares the page with what this makes, so it cannot be out of date.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnx import defs

from ingot.frontends.onnx import load_onnx
from ingot.frontends.onnx.host import hosted, is_host_op
from ingot.frontends.onnx.registry import MICROSOFT, ML, ONNX, PREVIEW, TRAINING, registered
from tests.frontends.onnx.exclusions import CASES, EXCLUDED, PASSING

assert load_onnx  # importing it completes the registries

PAGE = Path(__file__).parent.parent.parent.parent / "docs" / "onnx_coverage.md"
DOMAINS = (ONNX, ML, PREVIEW, TRAINING)

_HEAD = """# ONNX: what is covered

Made by `python -m tests.frontends.onnx.coverage` from the importer's own tables; a test compares. The versions are those of
onnx {onnx}.

## The official suite

{passing} of the {cases} cases that the onnx package brings pass through the backend interface, and so do its nine
architectures with generated weights. `make sweep` runs all of them, `make test` one of every set of ops. The others:

| case | why it cannot pass |
|---|---|
"""

_OPS = """
## Ops

*compiled*: the op has a converter of its own. *definition*: it is compiled from the function body that ONNX gives for
it. *host*: it runs in NumPy, between compiled parts, and `explain()` names the node. *compiled, host*: compiled for numbers,
on the host for strings or where the size of its result depends on data. A version is one from which a converter holds, up to
the next; earlier ones are not read.
"""


def newest_schemas(domain: str) -> dict[str, Any]:
    """The newest description of each op of a domain that is not deprecated."""
    return {s.name: s for s in sorted(defs.get_all_schemas(), key=lambda s: s.name) if s.domain == domain and not s.deprecated}


def how(domain: str, name: str, schema: Any = None) -> str:
    """How an op is covered; nothing when it is not."""
    found = []
    if (domain, name) in registered():
        found.append("compiled")
    elif schema is not None and (schema.has_function or schema.has_context_dependent_function):
        found.append("definition")
    if is_host_op(domain, name):
        found.append("host")
    return ", ".join(found)


def page() -> str:
    lines = [_HEAD.format(onnx="1.23", passing=PASSING, cases=CASES).rstrip("\n")]
    lines += [f"| `{name}` | {reason} |" for name, reason in EXCLUDED.items()]
    lines.append(_OPS.rstrip("\n"))
    for domain in DOMAINS:
        lines += ["", f"### {domain or 'ai.onnx'}", "", "| op | how | versions |", "|---|---|---|"]
        for name, schema in newest_schemas(domain).items():
            lines.append(f"| {name} | {how(domain, name, schema) or 'not supported'} | {_versions(domain, name)} |")
    apart = " and ".join(name for domain, name in hosted() if domain == MICROSOFT)
    lines += ["", f"### {MICROSOFT}", "", f"What exporters, quantisers and optimisers for ONNX Runtime write; all compiled, but {apart}, which the host runs.", ""]
    lines += [", ".join(sorted({name for domain, name in (*registered(), *hosted()) if domain == MICROSOFT})) + "."]
    return "\n".join(lines) + "\n"


def _versions(domain: str, name: str) -> str:
    return ", ".join(map(str, registered().get((domain, name), ())))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
