"""Which part of Ingot may import which: the rules as data, exceptions with their reasons.

façade  ->  frontends  ->  compiler  ->  runtime
inside the compiler:  pipeline and its drivers  ->  {codegen, schedule, fusion, memory, passes, autodiff}
                      ->  ops  ->  ir  ->  {errors, options, target}
"""

from tests.architecture.source_tree import PACKAGE

# A part may import parts of a lower rank, and itself.
FOLDER_RANK = {"runtime": 0, "compiler": 1, "frontends": 2, "façade": 3}

BASICS = ("errors", "options", "target")
SIBLINGS = ("autodiff", "codegen", "fusion", "memory", "passes", "schedule")
COMPILER_RANK = dict.fromkeys(BASICS, 0) | {"ir": 1, "ops": 2} | dict.fromkeys(SIBLINGS, 3)

# Every other file directly in compiler/ is on top: the pipeline, and drivers such as one that bisects.
COMPILER_TOP_RANK = 4

# (importing sibling, imported sibling): why the one must know the other. An unused entry fails a test.
ALLOWED_BETWEEN_SIBLINGS: dict[tuple[str, str], str] = {}

# Files longer than LONGEST_FILE lines need an entry: path -> why it is still one idea. An outdated one fails.
LONGEST_FILE = 800
EXCUSED_LONG_FILES: dict[str, str] = {}

# The only files that may read the environment: one for each side of the line that runtime does not cross.
ENVIRONMENT_READERS = ("compiler/options.py", "runtime/settings.py")


def folder(module: str) -> str:
    """runtime, compiler or frontends; anything else in the package is the façade."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in FOLDER_RANK else "façade"


def compiler_part(module: str) -> str:
    """The part of the compiler that a module belongs to; the empty string for the package's own __init__."""
    parts = module.split(".")
    assert parts[:2] == [PACKAGE, "compiler"], module
    return parts[2] if len(parts) > 2 else ""


def compiler_rank(part: str) -> int:
    return COMPILER_RANK.get(part, COMPILER_TOP_RANK)


def folder_violation(importer: str, imported: str) -> str | None:
    """Why one folder must not import another, or None."""
    low, high = folder(importer), folder(imported)
    if FOLDER_RANK[high] > FOLDER_RANK[low]:
        return f"{low} must not know {high}"
    return None


def compiler_violation(importer: str, imported: str) -> str | None:
    """Why one part of the compiler must not import another, or None."""
    low, high = compiler_part(importer), compiler_part(imported)
    if low == high or (low, high) in ALLOWED_BETWEEN_SIBLINGS:
        return None
    if low in SIBLINGS and high in SIBLINGS:
        return f"{low} and {high} are siblings: what both need belongs in ir, what joins them in pipeline"
    if compiler_rank(high) > compiler_rank(low):
        return f"{high or 'compiler'} is above {low}"
    return None
