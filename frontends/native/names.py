"""Names of tensors and dims as C spells them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from ingot.runtime.manifest import TensorSpec

C_TYPES = {
    "bool": "uint8_t", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t",
    "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t",
    "f16": "uint16_t", "bf16": "uint16_t", "f32": "float", "f64": "double",
}  # fmt: skip
# Type codes of .npy files; NumPy writes bf16, which it does not know, as bytes.
NPY_CODES = {
    "bool": "|b1", "i8": "|i1", "i16": "<i2", "i32": "<i4", "i64": "<i8",
    "u8": "|u1", "u16": "<u2", "u32": "<u4", "u64": "<u8",
    "f16": "<f2", "bf16": "<V2 |V2", "f32": "<f4", "f64": "<f8",
}  # fmt: skip
SAFETENSORS_CODES = {
    "bool": "BOOL", "i8": "I8", "i16": "I16", "i32": "I32", "i64": "I64",
    "u8": "U8", "u16": "U16", "u32": "U32", "u64": "U64",
    "f16": "F16", "bf16": "BF16", "f32": "F32", "f64": "F64",
}  # fmt: skip

_KEYWORDS = frozenset({
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern",
    "float", "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed",
    "sizeof", "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while",
    # of C++, and of compilers
    "asm", "bool", "catch", "class", "delete", "false", "friend", "namespace", "new", "operator", "private",
    "protected", "public", "template", "this", "throw", "true", "try", "typename", "using", "virtual",
})  # fmt: skip


def identifier(name: str) -> str:
    """A C identifier that reads like the name."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name).strip("_") or "x"
    return f"x{plain}" if plain[0].isdigit() else f"{plain}_" if plain in _KEYWORDS else plain


def identifiers(names: Iterable[str], taken: Sequence[str] = ()) -> list[str]:
    """Different identifiers for all names, different from those taken."""
    used = set(taken)
    found: list[str] = []
    for name in names:
        plain = identifier(name)
        chosen, count = plain, 1
        while chosen in used:
            count += 1
            chosen = f"{plain}_{count}"
        used.add(chosen)
        found.append(chosen)
    return found


def text(value: str) -> str:
    """A C string literal. Everything but plain characters is written in octal, which cannot run on."""
    parts = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in value.encode())
    return f'"{"".join(parts)}"'


def comment(value: str) -> str:
    """Text that may stand in a C comment."""
    return json.dumps(value, ensure_ascii=False)[1:-1].replace("*/", "* /").replace("/*", "/ *")


def type_text(spec: TensorSpec) -> str:
    return f"{spec.dtype}[{', '.join(map(str, spec.shape))}]"
