"""Strings, in NumPy arrays of objects."""

from __future__ import annotations

import itertools
import unicodedata
from collections import Counter
from typing import Any

import numpy as np

from ingot.frontends.onnx.call import MOST_ELEMENTS
from ingot.frontends.onnx.elements import STRING, element
from ingot.frontends.onnx.host import host_op
from ingot.frontends.onnx.hosted.patterns import Pattern
from ingot.frontends.onnx.problems import Kind, ProblemError


def texts(array: np.ndarray) -> np.ndarray:
    """Strings as an array of Python strings, whatever they came as."""
    made = np.empty(array.shape, object)
    for place, item in np.ndenumerate(array):
        made[place] = item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)
    return made


def _each(function: Any, *arrays: np.ndarray, dtype: Any = object) -> np.ndarray:
    wide = np.broadcast_arrays(*arrays)
    made = np.empty(wide[0].shape, dtype)
    for place in np.ndindex(*made.shape):
        made[place] = function(*(a[place] for a in wide))
    return made


@host_op("StringConcat")
def string_concat(call: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _each(lambda x, y: x + y, texts(a), texts(b))


@host_op("Equal")
def equal(call: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _each(lambda x, y: x == y, texts(a), texts(b), dtype=np.bool_)


@host_op("RegexFullMatch")
def regex_full_match(call: Any, x: np.ndarray) -> np.ndarray:
    return _each(Pattern(call.get("pattern")).matches, texts(x), dtype=np.bool_)


@host_op("StringSplit")
def string_split(call: Any, x: np.ndarray) -> Any:
    """Parts, filled up with empty strings to the longest row; and how many each string had."""
    delimiter, most = call.get("delimiter", "") or None, call.get("maxsplit", None)
    rows = [s.split(delimiter, -1 if most is None else most) for s in texts(x).ravel()]
    width = max(map(len, rows), default=0)
    parts = np.full((len(rows), width), "", object)
    for n, row in enumerate(rows):
        parts[n, : len(row)] = row
    counts = np.array([len(row) for row in rows], np.int64)
    return parts.reshape(*x.shape, width), counts.reshape(x.shape)


@host_op("StringNormalizer")
def string_normalizer(call: Any, x: np.ndarray) -> np.ndarray:
    """Stop words are left out, the rest changes its case; a row that loses all its words keeps an empty one."""
    change = call.get("case_change_action", "NONE")
    stop, sensitive = call.get("stopwords", []), bool(call.get("is_case_sensitive", 0))

    def cased(word: str) -> str:
        return {"LOWER": word.lower(), "UPPER": word.upper()}.get(change, word)

    banned = set(stop) if sensitive else {word.casefold() for word in stop}
    words = [_plain(word) for word in texts(x).ravel()]
    kept = [cased(word) for word in words if (word if sensitive else word.casefold()) not in banned]
    made = np.array(kept or [""], object)
    return made.reshape(1, -1) if x.ndim == 2 else made


def _plain(word: str) -> str:
    """Without accents."""
    return "".join(c for c in unicodedata.normalize("NFKD", word) if not unicodedata.combining(c))


@host_op("Cast")
def cast(call: Any, x: np.ndarray) -> np.ndarray:
    return convert(x, call.get("to"))


@host_op("CastLike")
def cast_like(call: Any, x: np.ndarray, like: np.ndarray) -> np.ndarray:
    return convert(x, STRING.code if like.dtype.kind in "OUS" else call.element_code(like))


def convert(x: np.ndarray, code: int) -> np.ndarray:
    if code == STRING.code:
        return _each(_number_text, np.asarray(x))
    kind = element(code)
    if kind is None:
        raise ProblemError(Kind.BAD_ATTRIBUTE, f"Cast to {code}, which is not an element type")
    wide = np.float64 if kind.numpy.kind not in "iub" else kind.numpy
    if x.dtype.kind in "OUST":
        try:
            parsed = _each(float if wide is np.float64 else _integer, texts(x))
            return parsed.astype(wide).astype(kind.numpy)
        except (ValueError, OverflowError) as error:
            raise ProblemError(Kind.BAD_VALUE, f"a string that is no {kind} number: {error}") from None
    return x.astype(kind.numpy)


def _integer(text: str) -> int:
    return int(float(text)) if any(c in text for c in ".eE") else int(text)


def _number_text(x: Any) -> str:
    if isinstance(x, str | bytes):
        return x if isinstance(x, str) else x.decode("utf-8", "replace")
    return str(x)


@host_op("TfIdfVectorizer")
def tf_idf_vectorizer(call: Any, x: np.ndarray) -> np.ndarray:
    """Counts of known n-grams of each row, whose items stand up to max_skip_count + 1 apart."""
    pool = call.get("pool_int64s", None) or call.get("pool_strings")
    places = call.get("ngram_indexes")
    if not places or min(places) < 0 or max(places) >= MOST_ELEMENTS:
        raise ProblemError(Kind.BAD_ATTRIBUTE, f"TfIdfVectorizer: ngram_indexes are {places[:8]}")
    shortest, longest = call.get("min_gram_length"), call.get("max_gram_length")
    known: dict[tuple[Any, ...], int] = {}
    number = 0
    starts = [*call.get("ngram_counts"), len(pool)]
    if starts != sorted(starts) or starts[0] < 0:
        raise ProblemError(Kind.BAD_ATTRIBUTE, f"TfIdfVectorizer: ngram_counts {starts[:-1]} do not divide {len(pool)} items")
    grams = sum(-(-(end - start) // size) for size, (start, end) in enumerate(itertools.pairwise(starts), start=1))
    weights = call.get("weights", None)
    if len(places) != grams or (weights is not None and len(weights) != grams):
        raise ProblemError(Kind.BAD_ATTRIBUTE, f"TfIdfVectorizer: {len(places)} indices or weights for {grams} n-grams")
    for size, (start, end) in enumerate(itertools.pairwise(starts), start=1):
        for first in range(start, end, size):
            if shortest <= size <= longest:
                known[tuple(pool[first : first + size])] = places[number]
            number += 1
    if x.ndim > 2:
        raise ProblemError(Kind.BAD_SHAPE, f"TfIdfVectorizer of {list(x.shape)}; it takes a row, or rows")
    rows = [x] if x.ndim < 2 else list(x)
    counts = np.zeros((len(rows), max(places) + 1), np.float32)
    for n, row in enumerate(rows):
        items = texts(row).tolist() if row.dtype.kind in "OUS" else np.asarray(row).reshape(-1).tolist()
        for place, count in _grams(items, known, shortest, longest, call.get("max_skip_count")).items():
            counts[n, place] = count
    if call.get("mode") == "IDF":
        counts = (counts > 0).astype(np.float32)
    if weights is not None and call.get("mode") != "TF":
        scale = np.ones(counts.shape[1], np.float32)
        scale[places] = weights
        counts = counts * scale
    return counts.astype(np.float32) if x.ndim == 2 else counts[0].astype(np.float32)


def _grams(
    items: list[Any], known: dict[tuple[Any, ...], int], shortest: int, longest: int, skips: int
) -> Counter[int]:
    """How often each known n-gram occurs; single items are counted once, not for every distance."""
    found: Counter[int] = Counter()
    longest = min(longest, max(map(len, known), default=0))
    for distance in range(1, min(skips + 1, len(items)) + 1):
        for size in range(shortest, longest + 1):
            if size == 1 and distance > 1:
                continue
            for start in range(len(items) - distance * (size - 1)):
                place = known.get(tuple(items[start + distance * k] for k in range(size)))
                if place is not None:
                    found[place] += 1
    return found
