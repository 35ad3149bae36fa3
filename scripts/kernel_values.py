"""How many values an iteration of a kernel's loop processes, and how many bytes they have (see kernel_loops.py)."""
import re

# Values of a tile of quantised weights (backends/simd/src/tile.rs).
TILE = 512
# Bytes and values per block (backends/hal/src/format).
BLOCKS = {
    "f32": (4, 1), "f16": (2, 1), "bf16": (2, 1), "q4_0": (18, 32), "q4_1": (20, 32), "q5_0": (22, 32), "q5_1": (24, 32),
    "q8_0": (34, 32), "iq4_nl": (18, 32), "mxfp4": (17, 32), "q1_0": (18, 128), "q2_k": (84, 256), "q3_k": (110, 256),
    "q4_k": (144, 256), "q5_k": (176, 256), "q6_k": (210, 256), "iq4_xs": (136, 256), "iq2_xxs": (66, 256),
    "iq2_xs": (74, 256), "iq2_s": (82, 256), "iq3_xxs": (98, 256), "iq3_s": (110, 256), "iq1_s": (50, 256),
    "iq1_m": (56, 256),
}
FORMAT = re.compile("(?<![a-z0-9])(?:" + "|".join(sorted(BLOCKS, key=len, reverse=True)) + ")(?![a-z0-9])")
# Products of codes per register of 16 bytes. `smull` and its like take 8 bytes, `smmla` multiplies each code twice.
CODE_PRODUCTS = {"vpdpbusd": 16, "vpmaddubsw": 16, "sdot": 16, "usdot": 16, "smmla": 32, "smull": 8, "smull2": 8, "smlal": 8,
                 "smlal2": 8}


def tile_bytes(frames):
    """The size of the tiles over which the code loops, None if it has none."""
    return next((int(found[1]) for frame in frames if (found := re.search(r"::for_tiles::<(\d+),", frame))), None)


def tile_format(n_bytes):
    """The one format with codebooks whose tiles have this size, None if there are several or none."""
    names = [name for name, (size, n_values) in BLOCKS.items() if name[:3] in ("iq1", "iq2", "iq3", "q1_") and
             TILE // n_values * size == n_bytes]
    return names[0] if len(names) == 1 else None


def lanes(instruction):
    """Floats in the vectors of an instruction."""
    return 16 if "zmm" in instruction.text else 8 if "ymm" in instruction.text else 4


def is_tile_loop(chains):
    """Whether a loop with these inlined functions is the one in `for_tiles`, not one inside the kernel's closure."""
    return any(any("::for_tiles::<" in frame for frame in chain)
               and "{closure" not in "".join(chain[: [("::for_tiles::<" in frame) for frame in chain].index(True)])
               for chain in chains)


def values_of(group, name, chains, increments, multiplications):
    """Values and bytes per iteration, None where unknown, from the tile's size, the distances by which pointers move, or
    the multiplications. The values of a panel are products of a weight with a token's value."""
    if group == "panel":
        return products(multiplications, "quantised" in name), None
    if group == "transposed":  # a weight is a byte or a nibble
        n = sum(map(lanes, multiplications))
        return n, n / 2 if "<true" in name else n
    steps, tile = {abs(step) for step in increments.values()}, next(filter(None, map(tile_bytes, chains)), None)
    if tile and is_tile_loop(chains):
        whole = max((step // tile for step in steps if step % tile == 0), default=1)
        return TILE * whole, tile * whole
    found = FORMAT.search(name)
    if not found:
        return None, None
    n_bytes, n_values = BLOCKS[found[0]]
    at_once = re.search(r"<(\d+)>$", name)
    if at_once and (n_values == 1 or group == "attention"):  # a multiplication per value and token, query or row
        n_products = sum(map(lanes, multiplications))
        n = n_products if group == "sum_rows" else n_products // int(at_once[1])
        return n, n * n_bytes / n_values
    # Sums and activations move by four bytes per value, or by one if they are quantised.
    fits = [step for step in steps if step % n_bytes == 0 and step // n_bytes * n_values >= 8
            and any(step // n_bytes * n_values * size in steps for size in (4, 1))]
    if not fits:
        return None, None
    n = int(at_once[1]) if at_once and group == "sum_rows" else 1  # a value of the sum takes a weight of every row
    return max(fits) // n_bytes * n_values * n, max(fits) * n


def products(multiplications, quantised):
    """Products of weights with activations, None if there are none: of codes in quantised rows, because scales are multiplied
    in addition."""
    if not quantised:
        return sum(map(lanes, multiplications))
    return sum(CODE_PRODUCTS.get(i.mnemonic, 0) * lanes(i) // 4 for i in multiplications) or None
