"""The committed PTX: `kernels-cuda/ptx.zst` (one zstd frame per kernel file) and `kernels-cuda/ptx.manifest` (its contents).

`backends/cuda/src/archive.rs` includes both in the program. A frame is written again only when one of its units
changes, so a commit that changes one kernel stores one new frame in git.
"""
import re
import sys
from dataclasses import dataclass

import kernel_units
from kernel_units import KERNELS

ARCHIVE = KERNELS / "ptx.zst"
MANIFEST = KERNELS / "ptx.manifest"
PACKAGES = ["zstandard==0.25.0"]
HEAD = """\
# Contents of ptx.zst. scripts/make_ptx writes both files; do not edit them.
#   compiler PACKAGE OPTIONS                         what compiled every unit
#   file NAME BYTES                                  a zstd frame of that size: the units below, one after the other
#   unit NAME TARGET BYTES SOURCE_HASH PTX_HASH      FNV-1a with 64 bits: of the kernel file with its includes, without
#                                                    comments; of the PTX
"""


@dataclass
class Unit:
    """One unit for one target: its PTX and the hash of the sources it was compiled from."""
    source: str
    ptx: str


def zstd():
    site = kernel_units.environment("zstd", PACKAGES)
    if str(site) not in sys.path:
        sys.path.insert(0, str(site))
    import zstandard
    return zstandard


def ptx_hash(ptx):
    return kernel_units.fnv(ptx.encode())


def code(text):
    """Lines without comments and trailing blanks, empty lines left out: rewording a comment changes no PTX."""
    lines = (line.split(b"//")[0].rstrip() for line in text.splitlines())
    return b"".join(line + b"\n" for line in lines if line)


def source_hash(file):
    """The hash of a kernel file and everything it includes: names and code, sorted by name."""
    texts, todo = {}, [f"{file}.cu"]
    while todo:
        name = todo.pop()
        if name not in texts:
            texts[name] = code((KERNELS / name).read_bytes())
            todo += [found.decode() for found in re.findall(rb'^\s*#\s*include\s+"([^"]+)"', texts[name], re.M)]
    return kernel_units.stamp(sorted(texts.items()))


def file_of(unit):
    return unit.split(".")[0]


def read():
    """The compiler line, and units by (name, target). Exits if archive and manifest contradict each other."""
    if not MANIFEST.is_file():
        return "", {}
    packed, offset, rest = ARCHIVE.read_bytes(), 0, b""
    compiler, units = "", {}
    decompressor = zstd().ZstdDecompressor()
    for line in MANIFEST.read_text().splitlines():
        match line.split():
            case ["compiler", *words]:
                compiler = " ".join(words)
            case ["file", _, size] if not rest:
                frame = packed[offset:offset + int(size)]
                offset += int(size)
                rest = decompressor.decompress(frame)
            case ["unit", name, target, size, source, wanted]:
                ptx, rest = rest[:int(size)].decode(), rest[int(size):]
                if ptx_hash(ptx) != wanted:
                    sys.exit(f"{ARCHIVE.name}: {name} for sm_{target} does not have the hash in {MANIFEST.name}")
                units[name, int(target)] = Unit(source, ptx)
            case [word, *_] if not word.startswith("#"):
                sys.exit(f"{MANIFEST.name}: invalid line: {line}")
    if rest or offset != len(packed):
        sys.exit(f"{ARCHIVE.name} holds more than {MANIFEST.name} lists")
    return compiler, units


def frames():
    """Frames as they are in the archive, by kernel file."""
    if not MANIFEST.is_file():
        return {}
    packed, offset, found = ARCHIVE.read_bytes(), 0, {}
    for words in map(str.split, MANIFEST.read_text().splitlines()):
        if words and words[0] == "file":
            found[words[1]] = packed[offset:offset + int(words[2])]
            offset += int(words[2])
    return found


def holds(frame, data):
    try:
        return zstd().ZstdDecompressor().decompress(frame) == data
    except zstd().ZstdError:
        return False


def write(compiler, units):
    """Replaces archive and manifest; frames whose PTX did not change keep their bytes."""
    zstandard = zstd()
    old, lines, packed = frames(), [f"compiler {compiler}"], []
    files = {}
    for name, target in sorted(units):
        files.setdefault(file_of(name), []).append((name, target))
    for file, names in sorted(files.items()):
        data = "".join(units[key].ptx for key in names).encode()
        frame = old.get(file)
        if frame is None or not holds(frame, data):
            # A zstd window (8 MiB) as large as the frame, because units of a file differ in few lines.
            settings = zstandard.ZstdCompressionParameters.from_level(19, source_size=len(data), window_log=23)
            frame = zstandard.ZstdCompressor(compression_params=settings).compress(data)
        packed.append(frame)
        lines.append(f"file {file} {len(frame)}")
        for key in names:
            name, target = key
            unit = units[key]
            lines.append(f"unit {name} {target} {len(unit.ptx)} {unit.source} {ptx_hash(unit.ptx)}")
    # The manifest is written last. If this run is interrupted, the old manifest does not match the archive, and `read`
    # exits with an error.
    ARCHIVE.write_bytes(b"".join(packed))
    MANIFEST.write_text(HEAD + "\n".join(lines) + "\n")


def extract(folder):
    """Writes each unit to `NAME.sm_TARGET.ptx` in a folder; returns paths by (name, target)."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for (name, target), unit in read()[1].items():
        paths[name, target] = folder / f"{name}.sm_{target}.ptx"
        paths[name, target].write_text(unit.ptx)
    return paths
