"""Rooms, arrows and circles of the Python code: who imports whom, package by package.

    python tools/rooms.py        one line a room, then the sums; exit code 1 if anything imports itself in a circle

A room is a package of `lockstep`, or one of the three programs; an arrow is one room's import of another.
"""

from __future__ import annotations

import sys

import grimp
import networkx

PACKAGES = ("lockstep", "coordinator", "worker", "verifier")


def room_of(module: str) -> str:
    """`lockstep.chain.rpc` lies in `lockstep.chain`, `worker.decide` in `worker`."""
    first, *rest = module.split(".")
    return f"{first}.{rest[0]}" if first == "lockstep" and rest else first


def circles(graph: networkx.DiGraph[str]) -> list[list[str]]:
    """Groups whose members all reach one another."""
    return [sorted(group) for group in networkx.strongly_connected_components(graph) if len(group) > 1]


def main() -> int:
    """Print them; 1 if there is a circle."""
    built = grimp.build_graph(*PACKAGES, cache_dir=None)
    modules: networkx.DiGraph[str] = networkx.DiGraph()
    modules.add_nodes_from(built.modules)
    for module in built.modules:
        modules.add_edges_from((module, other) for other in built.find_modules_directly_imported_by(module))
    rooms: networkx.DiGraph[str] = networkx.DiGraph()
    rooms.add_nodes_from(map(room_of, modules))
    rooms.add_edges_from((room_of(a), room_of(b)) for a, b in modules.edges if room_of(a) != room_of(b))
    for room in sorted(rooms):
        print(f"{room:24} -> {' '.join(sorted(other.removeprefix('lockstep.') for other in rooms[room]))}")
    found = circles(modules) + circles(rooms)
    print(f"{len(rooms)} rooms, {rooms.number_of_edges()} arrows, {len(modules)} modules, {len(found)} circles")
    for circle in found:
        print("circle:", " ".join(circle))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
