"""Files that the repository stores as byte planes, compressed by gzip: the bytes at every `width`-th position, from each of
the first `width` positions on. The bytes of F16 weights and F32 logits compress better apart. src/planes reads them too."""
import gzip
from pathlib import Path

BUILT_IN = Path(__file__).resolve().parent.parent / "assets/tinystories-relu-f16.gguf.planes.gz"


def split(data, width):
    return b"".join(data[first::width] for first in range(width))


def join(planes, width):
    data, at = bytearray(len(planes)), 0
    for first in range(width):
        n = len(data[first::width])
        data[first::width] = planes[at:at + n]
        at += n
    return bytes(data)


def width_of(name):
    return 4 if name.endswith(".logits") else 2


def pack(path):
    """Replaces the file `path` with `path.planes.gz`."""
    import zopfli.gzip  # only the programs that write such files need it

    path = Path(path)
    planes = split(path.read_bytes(), width_of(path.name))
    path.with_name(f"{path.name}.planes.gz").write_bytes(zopfli.gzip.compress(planes))
    path.unlink()


def unpack(path, folder):
    """Writes the content of a compressed file to `folder`, and returns the new path."""
    name = path.name.removesuffix(".planes.gz")
    data = join(gzip.decompress(path.read_bytes()), width_of(name))
    to = Path(folder) / name
    part = to.with_name(f"{name}.part")
    part.write_bytes(data)
    part.replace(to)
    return to
