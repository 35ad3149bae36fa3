"""LLVM's command-line tools: the newest version on the path."""
import functools
import os
import re
import subprocess
from pathlib import Path


@functools.cache
def find(name):
    """The program with the highest version, as Debian names them (`llvm-mca-19`); without one, the plain name."""
    versions = {}
    for folder in os.environ["PATH"].split(os.pathsep):
        for path in Path(folder).glob(f"{name}-*"):
            number = path.name.removeprefix(f"{name}-")
            if number.isdigit():
                versions.setdefault(int(number), path)
    return str(versions[max(versions)]) if versions else name


def run(name, *words, stdin=None):
    try:
        return subprocess.run([find(name), *map(str, words)], input=stdin, capture_output=True, text=True)
    except FileNotFoundError:
        raise SystemExit(f"{name} is missing: install Debian's package llvm-19 or newer") from None


def output(name, *words, stdin=None):
    result = run(name, *words, stdin=stdin)
    if result.returncode != 0:
        raise SystemExit(f"{find(name)}: exit {result.returncode}\n{result.stderr[-2000:]}")
    return result.stdout


def version(name):
    found = re.search(r"version (\S+)", output(name, "--version"))
    return found[1] if found else "unknown"
