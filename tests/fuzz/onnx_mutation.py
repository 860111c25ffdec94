"""Broken ONNX files made of sound ones: mutations of the message, field by field, of its bytes, and edits that know
what they edit (onnx_edits.py).

Invariant: a mutation depends on the generator it is given alone, so a seed is a candidate.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import EncodeError, Message
from onnx import ModelProto

from tests.fuzz.onnx_edits import edited

INTEGERS = (
    0, 1, -1, 2, 7, 255, -128, 1 << 16, (1 << 31) - 1, -(1 << 31), 1 << 31, 1 << 40, 1 << 47, (1 << 62) + 1,
    (1 << 63) - 1, -(1 << 63),
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 3e38, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "x", "y", "\x00", "ai.onnx.ml", "com.microsoft", "../../weights", "é" * 40, "a" * 5000)

_INTEGER_TYPES = {
    FieldDescriptor.TYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT64: (0, (1 << 64) - 1),
}


def mutated(model: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """One candidate: most keep the form of a message, since a parser refuses nearly all other files; and most of
    those are edited as models, since the check of the structure refuses many others."""
    if random.random() < 0.1:
        return _mutated_bytes(model, others, random)
    message = ModelProto.FromString(model)
    change = edited if random.random() < 0.7 else _mutate_message
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        change(message, others, random)
    try:
        return message.SerializeToString()
    except (EncodeError, ValueError):  # above two gigabytes, or a name that is not text
        return model


# --- bytes ------------------------------------------------------------------------------------------


def _mutated_bytes(model: bytes, others: Sequence[bytes], random: Random) -> bytes:
    data = bytearray(model)
    place = random.randrange(len(data))
    match random.randrange(5):
        case 0:  # truncated
            return bytes(data[:place])
        case 1:  # flipped bits
            for _ in range(random.choice((1, 1, 2, 8))):
                data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        case 2:  # a piece is missing
            del data[place : place + random.randrange(1, 64)]
        case 3:  # a number of another size
            data[place : place + 8] = struct.pack("<q", random.choice(INTEGERS))
        case _:  # the end is another model's
            other = random.choice(others)
            return bytes(data[:place]) + other[random.randrange(len(other)) :]
    return bytes(data)


# --- messages ---------------------------------------------------------------------------------------


def _mutate_message(message: ModelProto, others: Sequence[bytes], random: Random) -> None:
    places = [m for m in _messages(message) if m.ListFields()]
    target = random.choice(places)
    field, value = random.choice(target.ListFields())
    if field.is_repeated:
        _mutate_repeated(target, field, value, others, random)
    elif field.message_type is not None:
        _mutate_part(target, field, value, others, random)
    else:
        setattr(target, field.name, _scalar(field, value, message, random))


def _messages(message: Message) -> Iterator[Message]:
    """The message and all messages in it."""
    work = [message]
    while work:
        made = work.pop()
        yield made
        for field, value in made.ListFields():
            if field.message_type is not None:
                work.extend(value if field.is_repeated else [value])


def _mutate_part(target: Any, field: Any, value: Any, others: Sequence[bytes], random: Random) -> None:
    if random.random() < 0.5:
        target.ClearField(field.name)
    else:
        value.CopyFrom(_borrowed(field.message_type.full_name, others, random) or value)


def _mutate_repeated(target: Any, field: Any, values: Any, others: Sequence[bytes], random: Random) -> None:
    place = random.randrange(len(values))
    action = random.randrange(5)
    if action == 0:
        del values[place]
    elif action == 1:
        target.ClearField(field.name)
    elif field.message_type is not None:
        if action == 2:
            values.add().CopyFrom(values[place])
        elif action == 3:
            values[place].CopyFrom(_borrowed(field.message_type.full_name, others, random) or values[place])
        else:  # out of order
            moved = type(values[place]).FromString(values[place].SerializeToString())
            del values[place]
            values.add().CopyFrom(moved)
    elif action == 2:
        values.extend([values[place]] * random.choice((1, 1, 3, 70)))
    else:
        values[place] = _scalar(field, values[place], target, random)


def _borrowed(kind: str, others: Sequence[bytes], random: Random) -> Message | None:
    """A message of the same kind from another model."""
    other = ModelProto.FromString(random.choice(others))
    found = [m for m in _messages(other) if m.DESCRIPTOR.full_name == kind]
    return random.choice(found) if found else None


def _scalar(field: Any, value: Any, message: Message, random: Random) -> Any:
    if field.type == FieldDescriptor.TYPE_ENUM:
        return random.choice([v.number for v in field.enum_type.values])
    if field.type in _INTEGER_TYPES:
        low, high = _INTEGER_TYPES[field.type]
        wanted = random.choice((value + 1, value - 1, -value, value ^ (1 << random.randrange(63)), *INTEGERS))
        return min(max(wanted, low), high)
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return random.choice((-value, value * 1e6, *FLOATS))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _bytes(value, random)
    names = [v for m in _messages(message) for f, v in m.ListFields() if _is_text(f) and not f.is_repeated]
    names += [v for m in _messages(message) for f, vs in m.ListFields() if _is_text(f) and f.is_repeated for v in vs]
    return random.choice(names) if names and random.random() < 0.7 else random.choice(TEXTS)


def _is_text(field: Any) -> bool:
    return field.type == FieldDescriptor.TYPE_STRING


def _bytes(value: bytes, random: Random) -> bytes:
    changes: tuple[Callable[[], bytes], ...] = (
        lambda: b"",
        lambda: value[: len(value) // 2],
        lambda: value + b"\0",
        lambda: random.randbytes(len(value)),
        lambda: bytes(b ^ (random.random() < 0.1) << 7 for b in value),
    )
    return random.choice(changes)()
