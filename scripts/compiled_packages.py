"""The packages that are compiled into the program, by `cargo metadata`."""

import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def host():
    """This machine's target triple."""
    version = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    return next(line.split()[1] for line in version.splitlines() if line.startswith("host"))


def compiled(target):
    """The program's own package, and the others that its normal dependencies lead to, sorted; and for each package's id
    the ids of its dependencies."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    packages = {package["id"]: package for package in metadata["packages"]}
    root = next(id for id, package in packages.items() if package["name"] == "thermocline")
    edges, open_ = {}, [root]
    while open_:
        id = open_.pop()
        edges[id] = [
            dependency["pkg"] for dependency in nodes[id]["deps"]
            if any(kind["kind"] is None for kind in dependency["dep_kinds"])
        ]
        open_ += [other for other in edges[id] if other not in edges and other not in open_]
    others = [packages[id] for id in edges if id != root]
    return packages[root], sorted(others, key=lambda p: (p["name"], p["version"])), edges
