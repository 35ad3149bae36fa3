"""The committed registers of the kernels that must be fast (kernels-cuda/registers.txt), what differs from them, and the
figures that a test counts (backends/cuda/tests/ptx/costs.txt)."""

from kernel_units import KERNELS, ROOT

TABLE = KERNELS / "registers.txt"
# What each kernel executes, and its threads per block as the backend launches it.
COSTS = ROOT / "backends/cuda/tests/ptx/costs.txt"
HEAD = """\
# Registers per thread of the kernels that must be fast, by {assembler}.
# scripts/compile_kernels --ci compares, and --ci --write writes this file.
"""
# A kernel may take this many registers more or less without a new table, if as many blocks fit.
TOLERANCE = 8
# Registers of a multiprocessor, which come in steps of 8 per thread; and its threads.
REGISTERS, STEP = 65536, 8
THREADS = {"sm_75": 1024, "sm_80": 2048, "sm_86": 1536, "sm_89": 1536, "sm_90": 2048, "sm_120": 1536}


def costs():
    """The figures of COSTS by unit and kernel, then by column."""
    lines = [line.split() for line in COSTS.read_text().splitlines() if not line.startswith("#")]
    columns = lines[0][2:]
    return {f"{unit} {kernel}": dict(zip(columns, figures)) for unit, kernel, *figures in lines[1:]}


def block_sizes():
    """The threads per block of each kernel file: the most that one of its kernels is launched with."""
    sizes = {}
    for key, figures in costs().items():
        file = key.split(".")[0]
        sizes[file] = max(int(figures["threads"]), sizes.get(file, 0))
    return sizes


def resident(registers, threads, column):
    """Blocks that a multiprocessor holds at a time."""
    taken = -(-registers // STEP) * STEP * threads
    return min(REGISTERS // taken, THREADS[column] // threads)


def write(rows, columns, assembler):
    """Writes the registers of rows[unit, kernel][column] = (registers, ...)."""
    lines = ["unit kernel".ljust(46) + "".join(column.rjust(8) for column in columns)]
    for (unit, kernel), cells in sorted(rows.items()):
        numbers = "".join(str(cells[column][0]).rjust(8) for column in columns)
        lines.append(f"{unit} {kernel}".ljust(46) + numbers)
    TABLE.write_text(HEAD.format(assembler=assembler) + "\n".join(lines) + "\n")


def read():
    """The columns, and the registers by unit, kernel and column."""
    lines = [line.split() for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    columns = lines[0][2:]
    return columns, {(unit, kernel): dict(zip(columns, map(int, numbers))) for unit, kernel, *numbers in lines[1:]}


def differences(rows, whole):
    """What differs from the table, in words; `whole` if rows has all kernels of the table. A kernel that got better
    counts too: without the new number in the table, a later change could lose it again unseen."""
    columns, table = read()
    sizes, found = block_sizes(), []
    for (unit, kernel), before in sorted(table.items()):
        now = rows.get((unit, kernel))
        if now is None:
            if whole:
                found.append(f"{unit} {kernel}: in {TABLE.name}, but no longer compiled")
            continue
        threads = sizes.get(unit.split(".")[0])
        for column in columns:
            if column not in now:
                continue
            registers, old = now[column][0], before[column]
            blocks = [resident(n, threads, column) if threads else 0 for n in (registers, old)]
            if abs(registers - old) > TOLERANCE or blocks[0] != blocks[1]:
                word = "WORSE" if registers > old else "better"
                fit = f"; {blocks[0]} blocks of {threads} threads fit a multiprocessor, before {blocks[1]}" if threads else ""
                found.append(f"{unit} for {column}: {word}: {kernel} takes {registers} registers, the table has {old}{fit}")
    if whole:
        found += [f"{unit} {kernel}: not in {TABLE.name}" for unit, kernel in sorted(rows) if (unit, kernel) not in table]
    if found:
        found.append("Undo what is worse. If it must be, or if all is better: scripts/compile_kernels --ci --write, and commit "
                     f"kernels-cuda/{TABLE.name}")
    return found
