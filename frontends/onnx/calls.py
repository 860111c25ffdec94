"""Which functions of a model call which: recursion, and how large a model becomes when calls are expanded.

Invariant: linear in the size of the file, whatever the file says; nothing is expanded to find out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from onnx import FunctionProto, NodeProto

from ingot.frontends.onnx.registry import domain_name
from ingot.frontends.onnx.source import FunctionKey, subgraphs

Calls = dict[FunctionKey, Counter[FunctionKey]]


def function_key(node: NodeProto) -> FunctionKey:
    return domain_name(node.domain), node.op_type, node.overload


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes, and those of their subgraphs."""
    work = list(nodes)
    while work:
        node = work.pop()
        yield node
        for graph in subgraphs(node):
            work.extend(graph.node)


@dataclass(frozen=True)
class CallGraph:
    """`recursive`: functions that call themselves, also by way of others. The other two say, for functions that do
    not, how many nodes a call becomes and how deep its calls are nested."""

    recursive: list[FunctionKey]
    sizes: dict[FunctionKey, int] = field(default_factory=dict)
    depths: dict[FunctionKey, int] = field(default_factory=dict)

    def size_of(self, nodes: Iterable[NodeProto]) -> int:
        return sum(1 + self.sizes.get(function_key(node), 0) for node in all_nodes(nodes))

    @property
    def depth(self) -> int:
        return max(self.depths.values(), default=0)


def call_graph(functions: Mapping[FunctionKey, FunctionProto]) -> CallGraph:
    calls: Calls = {}
    plain: dict[FunctionKey, int] = {}
    for key, function in functions.items():
        nodes = [function_key(node) for node in all_nodes(function.node)]
        calls[key] = Counter(k for k in nodes if k in functions)
        plain[key] = len(nodes)
    order = _callees_first(calls)
    rest = {key: calls[key] for key in calls if key not in set(order)}
    callers: Calls = {key: Counter() for key in rest}
    for key, callees in rest.items():
        for callee in callees.keys() & rest.keys():
            callers[callee][key] += 1
    innocent = set(_callees_first(callers))  # these only lead into a circle
    made = CallGraph([key for key in rest if key not in innocent])
    for key in order:
        made.sizes[key] = plain[key] + sum(count * made.sizes[callee] for callee, count in calls[key].items())
        made.depths[key] = 1 + max((made.depths[callee] for callee in calls[key]), default=0)
    return made


def _callees_first(calls: Calls) -> list[FunctionKey]:
    """The functions that reach no circle, each after those it calls."""
    callers: dict[FunctionKey, list[FunctionKey]] = {key: [] for key in calls}
    missing: dict[FunctionKey, int] = {}
    for key, callees in calls.items():
        known = callees.keys() & calls.keys()
        missing[key] = len(known)
        for callee in known:
            callers[callee].append(key)
    order = [key for key, count in missing.items() if not count]
    for key in order:  # grows while it is read
        for caller in callers[key]:
            missing[caller] -= 1
            if not missing[caller]:
                order.append(caller)
    return order
