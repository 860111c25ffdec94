"""Tree ensembles as branch-free code: every row walks every tree, one level per step.

A forest is a table of nodes (feature, threshold, comparison, next node when it holds and when not); leaves lead to
themselves. After as many steps as a tree has levels, the places are leaves, and their weights are added. Comparisons
of size are walked by an op of their own (`TreeLeaves`), several trees at a time; what else there is by gathers, all
trees at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot.compiler.ir.types import f32, f64, i64
from ingot.compiler.ops.indexing import Gather, GatherElements
from ingot.compiler.ops.movement import concat
from ingot.compiler.ops.trees import TreeLeaves, links
from ingot.frontends.dsl import functions
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import MOST_ELEMENTS, Call
from ingot.frontends.onnx.convert.classical import TRANSFORMS, labelled, rows, string_labels, transformed
from ingot.frontends.onnx.problems import Kind, ProblemError
from ingot.frontends.onnx.registry import ML, onnx_op

COMPARISONS = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
LEAF = -1
MEMBER = len(COMPARISONS)  # whether a feature is one of a set of values


@dataclass
class Forest:
    """Nodes of all trees; a node's mode is a number of COMPARISONS, or LEAF."""

    feature: list[int] = field(default_factory=list)
    split: list[float] = field(default_factory=list)
    mode: list[int] = field(default_factory=list)
    yes: list[int] = field(default_factory=list)
    no: list[int] = field(default_factory=list)
    missing: list[bool] = field(default_factory=list)  # whether NaN takes the yes branch
    weights: list[dict[int, float]] = field(default_factory=list)  # of leaves: target -> weight
    roots: list[int] = field(default_factory=list)

    def add(self, feature: int, split: float, mode: int, missing: bool = False) -> int:
        """A new node, which leads to itself until told otherwise."""
        number = len(self.mode)
        self.feature.append(feature)
        self.split.append(split)
        self.mode.append(mode)
        self.yes.append(number)
        self.no.append(number)
        self.missing.append(missing)
        self.weights.append({})
        return number

    def depth(self) -> int:
        """Levels below the roots. Trees that are none (a node leads back to one before it) are an error."""
        depth, level, left = 0, list(self.roots), len(self.mode) + len(self.roots)
        while True:
            inner = [n for n in level if self.mode[n] != LEAF]
            if not inner:
                return depth
            left -= len(inner)
            if left < 0:
                raise ProblemError(Kind.BAD_ATTRIBUTE, "the nodes of a tree lead back to earlier ones")
            level = [m for n in inner for m in (self.yes[n], self.no[n])]
            depth += 1


@dataclass(frozen=True)
class Ordered:
    """A forest as `TreeLeaves` takes it, the deepest trees first; `places[k]` is the node of the forest that node k is,
    of tree `tree_of[k]` of the forest."""

    thresholds: np.ndarray
    links: np.ndarray
    roots: np.ndarray
    depth: int
    order: list[int]  # of the trees
    places: list[int]
    tree_of: list[int]


def ordered(forest: Forest, columns: int, dtype: Any) -> Ordered | None:
    """Every comparison as x <= t: x < t is x <= the float below t, and x > t the same with the children exchanged. A node
    that sends NaN to its first child reads a copy of the column in which NaN is -inf: columns are those of x, the same
    without NaN, and one of zeros. None for what has no such form (x == t) or too many nodes."""
    if any(m > COMPARISONS.index("BRANCH_GT") for m in forest.mode) or (-np.inf in forest.split):
        return None
    most = 4 * len(forest.mode) + 16  # a node that several lead to is copied for each
    trees: list[tuple[int, list[int], list[int]]] = []  # depth; the nodes, siblings together; the place of first children
    for root in forest.roots:
        nodes, depths, link = [root], [0], list[int]()
        for place, node in enumerate(nodes):  # grows meanwhile
            if forest.mode[node] == LEAF:
                link.append(place)
                continue
            link.append(len(nodes))
            children = forest.yes[node], forest.no[node]
            nodes += children[::-1] if _is_exchanged(forest, node) else children
            depths += [depths[place] + 1] * 2
            if len(nodes) > most:
                return None
        most -= len(nodes)
        trees.append((depths[-1], nodes, link))
    order = sorted(range(len(trees)), key=lambda t: -trees[t][0])
    places: list[int] = []  # of the forest, in the new order
    following, roots, owner = list[int](), list[int](), list[int]()
    for tree in order:
        _, nodes, link = trees[tree]
        roots.append(len(places))
        following += [len(places) + place for place in link]
        places += nodes
        owner += [tree] * len(nodes)
    features = [
        2 * columns if forest.mode[n] == LEAF else forest.feature[n] + columns * _sends_nan_first(forest, n) for n in places
    ]
    thresholds = np.array([_threshold(forest, n, dtype) for n in places], dtype)
    word = links(np.array(features), np.array(following))
    return Ordered(thresholds, word, np.asarray(roots, np.uint32), trees[order[0]][0], order, places, owner)


def _is_exchanged(forest: Forest, node: int) -> bool:
    return COMPARISONS[forest.mode[node]] in ("BRANCH_GT", "BRANCH_GTE")


def _sends_nan_first(forest: Forest, node: int) -> bool:
    """NaN makes no comparison true; a node may say that it takes the yes branch all the same."""
    return forest.missing[node] != _is_exchanged(forest, node)


def _threshold(forest: Forest, node: int, dtype: Any) -> Any:
    if forest.mode[node] == LEAF:
        return dtype(0)  # as is the column that it reads
    split = dtype(forest.split[node])
    strict = COMPARISONS[forest.mode[node]] in ("BRANCH_LT", "BRANCH_GTE")
    return np.nextafter(split, dtype(-np.inf)) if strict else split


def check_features(x: Any, forest: Forest) -> None:
    columns = int(x.shape[1])
    if any(not 0 <= f < columns for f, m in zip(forest.feature, forest.mode, strict=True) if m != LEAF):
        raise ProblemError(Kind.BAD_ATTRIBUTE, f"a tree reads a feature that {x.type!r} does not have")


def leaves(op: Call, x: Any, forest: Forest) -> Any:
    """[rows, trees]: the leaf that each row reaches in each tree."""
    modes = sorted({m for m in forest.mode if m != LEAF})

    def table(values: Sequence[Any], dtype: Any) -> Tensor:
        return op.constant(np.asarray(values, dtype))

    feature = table([f if m != LEAF else 0 for f, m in zip(forest.feature, forest.mode, strict=True)], np.int64)
    split, mode = table(forest.split, x.dtype.numpy), table(forest.mode, np.int64)
    yes, no = table(forest.yes, np.int64), table(forest.no, np.int64)
    missing = table(forest.missing, np.bool_) if any(forest.missing) else None
    place = table(forest.roots, np.int64).reshape(1, len(forest.roots)).broadcast_to((x.shape[0], len(forest.roots)))

    def step(place: Any, _: None) -> tuple[Any, None]:
        value = x.apply(GatherElements(1), feature.apply(Gather(0), place))
        threshold = split.apply(Gather(0), place)
        holds: Any = None
        kinds = mode.apply(Gather(0), place) if len(modes) > 1 else None
        for number in modes:
            answer = _compared(value, threshold, number)
            holds = answer if holds is None or kinds is None else (kinds == number).where(answer, holds)
        if missing is not None:
            holds = holds | (value.is_nan() & missing.apply(Gather(0), place))
        return holds.where(yes.apply(Gather(0), place), no.apply(Gather(0), place)), None

    depth = forest.depth()
    return functions.scan(step, place, None, depth)[0] if depth else place


def _compared(value: Any, threshold: Any, mode: int) -> Any:
    match COMPARISONS[mode]:
        case "BRANCH_LEQ":
            return value <= threshold
        case "BRANCH_LT":
            return value < threshold
        case "BRANCH_GTE":
            return value >= threshold
        case "BRANCH_GT":
            return value > threshold
        case "BRANCH_EQ":
            return value == threshold
    return value != threshold


def aggregated(op: Call, x: Any, forest: Forest, targets: int, how: str) -> Any:
    """[rows, targets]: the sum (or mean, minimum, maximum) over the trees of the weights of their leaves."""
    check_features(x, forest)
    op.require(forest.roots, Kind.BAD_ATTRIBUTE, "it has no trees")
    op.bounded(targets * len(forest.mode), "the number of targets times that of nodes", MOST_ELEMENTS)
    wrong = next((t for given in forest.weights for t in given if not 0 <= t < targets), None)
    op.require(wrong is None, Kind.BAD_ATTRIBUTE, f"a leaf has a weight of target {wrong} of {targets}")
    forest.depth()  # trees that are none are refused
    made = ordered(forest, int(x.shape[1]), x.dtype.numpy.type) if forest.roots else None
    if made is None:
        place, nodes = leaves(op, x, forest), list(range(len(forest.mode)))
    else:
        columns = concat([x, x.is_nan().where(-np.inf, x), x.full((x.shape[0], 1), 0)], 1)
        tables = [op.constant(a) for a in (made.thresholds, made.links, made.roots)]
        place, nodes = columns.apply(TreeLeaves(made.depth), *tables), made.places
    weights = [forest.weights[node] for node in nodes]
    if made is not None and how in ("SUM", "AVERAGE"):
        shared = _by_target(forest, made, targets)
        if shared is not None:
            alone = np.array([next(iter(w.values()), 0.0) for w in weights], x.dtype.numpy)
            mine = place.apply(Gather(1), op.constant(shared))  # [rows, targets, trees of each]
            total = op.constant(alone).apply(Gather(0), mine).reduce("sum", (2,))
            return total / float(max(1, len(forest.roots))) if how == "AVERAGE" else total
    table = np.zeros((len(nodes), targets), x.dtype.numpy)
    for number, given in enumerate(weights):
        for target, weight in given.items():
            table[number, target] += weight
    votes = op.constant(table).apply(Gather(0), place)  # [rows, trees, targets]
    if how in ("MIN", "MAX"):
        return votes.reduce(how.lower(), (1,))
    total = votes.reduce("sum", (1,))
    return total / float(max(1, len(forest.roots))) if how == "AVERAGE" else total


def _by_target(forest: Forest, made: Ordered, targets: int) -> np.ndarray | None:
    """[targets, trees of each], in the order of the file: which trees have weights of a target. None when one has
    weights of several, or targets have unequally many trees."""
    owner: dict[int, int] = {}
    for node, tree in zip(made.places, made.tree_of, strict=True):
        for target in forest.weights[node]:
            if owner.setdefault(tree, target) != target or not 0 <= target < targets:
                return None
    columns = {tree: column for column, tree in enumerate(made.order)}
    groups = [[columns[tree] for tree in sorted(owner) if owner[tree] == target] for target in range(targets)]
    if len(owner) < len(made.order) or len({len(g) for g in groups}) != 1:
        return None
    return np.array(groups, np.int64)


def _data(x: Tensor) -> Any:
    return rows(x if x.dtype in (f32, f64) else x.cast(f32))


# --- version 5 --------------------------------------------------------------------------------------


@onnx_op("TreeEnsemble", domain=ML, least_ranks={0: 1})
def tree_ensemble(op: Call, x: Tensor) -> Any:
    data = _data(x)
    how = _numbered(op, "aggregate_function", 1, ("AVERAGE", "SUM", "MIN", "MAX"))
    scores = aggregated(op, data, _forest_5(op), op.get("n_targets", 1), how)
    return transformed(scores, _numbered(op, "post_transform", 0, TRANSFORMS))


def _numbered(op: Call, attribute: str, default: int, names: tuple[str, ...]) -> str:
    """A choice that is written as a number."""
    number = op.get(attribute, default)
    op.require(0 <= number < len(names), Kind.BAD_ATTRIBUTE, f"{attribute} is {number}; 0 to {len(names) - 1} are known")
    return names[number]


def _check_lengths(op: Call, stem: str, names: Sequence[str], count: int) -> None:
    """Attributes that say something about each node, or each leaf, say it about all of them."""
    for name in names:
        found = len(op.get(f"{stem}_{name}"))
        op.require(found == count, Kind.BAD_ATTRIBUTE, f"{stem}_{name} has {found} elements, not {count}")


def _forest_5(op: Call) -> Forest:
    forest = Forest()
    modes, splits = op.get("nodes_modes").reshape(-1).tolist(), op.get("nodes_splits").reshape(-1).tolist()
    features = op.get("nodes_featureids")
    tracks = op.get("nodes_missing_value_tracks_true", None) or [0] * len(modes)
    names = ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")
    _check_lengths(op, "nodes", names, len(modes))
    op.require(len(splits) == len(tracks) == len(modes), Kind.BAD_ATTRIBUTE, f"nodes_splits has not {len(modes)} elements")
    unknown = next((m for m in modes if not 0 <= m <= MEMBER), None)
    op.require(unknown is None, Kind.BAD_ATTRIBUTE, f"there is no node mode {unknown}")
    members = _member_sets(op, modes)
    heads: list[tuple[int, list[int]]] = []
    for n, mode in enumerate(modes):
        if mode == MEMBER:  # a chain of comparisons
            values = next(members, None)
            op.require(values is not None, Kind.BAD_ATTRIBUTE, "membership_values has fewer sets than nodes have")
            assert values is not None
            chain = [forest.add(features[n], value, 4, bool(tracks[n])) for value in values]
            for before, after in itertools.pairwise(chain):
                forest.no[before] = after
            heads.append((chain[0], chain))
        else:
            number = forest.add(features[n], splits[n], mode, bool(tracks[n]))
            heads.append((number, [number]))
    targets, weights = op.get("leaf_targetids"), op.get("leaf_weights").reshape(-1).tolist()
    op.require(len(targets) == len(weights), Kind.BAD_ATTRIBUTE, f"{len(targets)} targets of {len(weights)} leaves")
    ends = []
    for target, weight in zip(targets, weights, strict=True):
        leaf = forest.add(0, 0.0, LEAF)
        forest.weights[leaf][target] = weight
        ends.append(leaf)
    for branch, ids, is_leaf in (
        ("yes", op.get("nodes_truenodeids"), op.get("nodes_trueleafs")),
        ("no", op.get("nodes_falsenodeids"), op.get("nodes_falseleafs")),
    ):
        for n, (where, leaf) in enumerate(zip(ids, is_leaf, strict=True)):
            count = len(ends) if leaf else len(heads)
            op.require(0 <= where < count, Kind.BAD_ATTRIBUTE, f"a tree names {'leaf' if leaf else 'node'} {where} of {count}")
            goal = ends[where] if leaf else heads[where][0]
            for node in heads[n][1] if branch == "yes" else heads[n][1][-1:]:
                getattr(forest, branch)[node] = goal
    roots = op.get("tree_roots")
    op.require(all(0 <= r < len(heads) for r in roots), Kind.BAD_ATTRIBUTE, f"tree_roots are {roots} of {len(heads)} nodes")
    forest.roots = [heads[r][0] for r in roots]
    return forest


def _member_sets(op: Call, modes: Sequence[int]) -> Any:
    """The values of each membership node; a NaN ends a set."""
    if MEMBER not in modes:
        return iter(())
    sets: list[list[float]] = [[]]
    for value in op.get("membership_values").tolist():
        if np.isnan(value):
            sets.append([])
        else:
            sets[-1].append(value)
    return iter([s for s in sets if s])


# --- versions 1 to 3 --------------------------------------------------------------------------------


def _numbers(op: Call, name: str, default: Any = None) -> list[Any]:
    """A list that may be given as floats or, for doubles, as a tensor."""
    if op.has(f"{name}_as_tensor"):
        return op.get(f"{name}_as_tensor").reshape(-1).tolist()
    return list(op.get(name, default) if default is not None else op.get(name))


def _forest(op: Call, kind: str) -> Forest:
    """`kind` is target or class: what the attributes of the leaves begin with."""
    forest = Forest()
    modes, features = op.get("nodes_modes"), op.get("nodes_featureids")
    splits = _numbers(op, "nodes_values")
    tracks = op.get("nodes_missing_value_tracks_true", None) or [0] * len(modes)
    _check_lengths(op, "nodes", ("featureids", "truenodeids", "falsenodeids", "treeids", "nodeids"), len(modes))
    op.require(len(splits) == len(tracks) == len(modes), Kind.BAD_ATTRIBUTE, f"nodes_values has not {len(modes)} elements")
    _check_lengths(op, kind, ("treeids", "nodeids", "ids"), len(_numbers(op, f"{kind}_weights")))
    place: dict[tuple[int, int], int] = {}
    trees, ids = op.get("nodes_treeids"), op.get("nodes_nodeids")
    for n, mode in enumerate(modes):
        number = LEAF if mode == "LEAF" else COMPARISONS.index(mode) if mode in COMPARISONS else None
        op.require(number is not None, Kind.BAD_ATTRIBUTE, f"there is no node mode {mode!r}")
        assert number is not None
        place[trees[n], ids[n]] = forest.add(features[n], splits[n], number, bool(tracks[n]))
    yes, no = op.get("nodes_truenodeids"), op.get("nodes_falsenodeids")
    try:
        for n, mode in enumerate(modes):
            if mode != "LEAF":
                here = place[trees[n], ids[n]]
                forest.yes[here] = place[trees[n], yes[n]]
                forest.no[here] = place[trees[n], no[n]]
        leaves_of = zip(
            op.get(f"{kind}_treeids"), op.get(f"{kind}_nodeids"), op.get(f"{kind}_ids"), _numbers(op, f"{kind}_weights"), strict=True
        )
        for tree, node, target, weight in leaves_of:
            weights = forest.weights[place[tree, node]]
            weights[target] = weights.get(target, 0.0) + weight
    except (KeyError, IndexError) as error:
        raise ProblemError(Kind.BAD_ATTRIBUTE, f"a tree names the node {error}, which does not exist") from None
    reached = {n for m, here in enumerate(forest.mode) if here != LEAF for n in (forest.yes[m], forest.no[m])}
    forest.roots = [n for n in place.values() if n not in reached]
    begun = {tree for (tree, _), n in place.items() if n not in reached}
    lost = next((tree for tree in trees if tree not in begun), None)
    op.require(lost is None, Kind.BAD_ATTRIBUTE, f"tree {lost} has no root: each of its nodes is the child of one of them")
    return forest


def _with_base(op: Call, scores: Any) -> Any:
    base = _numbers(op, "base_values", [])
    return scores + op.constant(np.asarray(base, scores.dtype.numpy)) if base else scores


@onnx_op("TreeEnsembleRegressor", domain=ML, least_ranks={0: 1})
def tree_ensemble_regressor(op: Call, x: Tensor) -> Any:
    data = _data(x)
    how = op.choice("aggregate_function", "SUM", ("AVERAGE", "SUM", "MIN", "MAX"))
    scores = aggregated(op, data, _forest(op, "target"), op.get("n_targets", 1), how)
    return transformed(_with_base(op, scores), op.choice("post_transform", "NONE", TRANSFORMS)).cast(f32)


@onnx_op("TreeEnsembleClassifier", domain=ML, least_ranks={0: 1})
def tree_ensemble_classifier(op: Call, x: Tensor) -> Any:
    named = string_labels(op, "classlabels_int64s")
    if named is not None:
        return named
    data = _data(x)
    how = op.choice("post_transform", "NONE", TRANSFORMS)
    count = len(op.get("classlabels_int64s", [])) or 1
    forest = _forest(op, "class")
    single = count <= 2 and len(set(op.get("class_ids"))) == 1
    if not single:
        scores = _with_base(op, aggregated(op, data, forest, count, "SUM"))
        return labelled(op, scores.argmax(1), "classlabels_int64s"), transformed(scores, how).cast(f32)
    return _one_score(op, data, forest, how)


def _one_score(op: Call, data: Any, forest: Forest, how: str) -> Any:
    """Two classes of which only one has weights: a probability when all are positive, else a decision value."""
    (target,) = set(op.get("class_ids"))
    for weights in forest.weights:
        if target in weights and target != 0:
            weights[0] = weights.pop(target)
    score = aggregated(op, data, forest, 1, "SUM")
    base = _numbers(op, "base_values", [])
    if base:
        score = score + float(base[-1])
    positive = all(w >= 0 for w in _numbers(op, "class_weights"))
    hit = (score > (0.5 if positive else 0.0)).reshape(score.shape[0])
    label = labelled(op, hit.cast(i64), "classlabels_int64s")
    if how == "PROBIT":
        return label, transformed(score, how).cast(f32)
    if positive:
        pair = concat([1.0 - score, score], 1)
    else:
        pair = transformed(concat([-score, score], 1), how)
    return label, pair.cast(f32)
