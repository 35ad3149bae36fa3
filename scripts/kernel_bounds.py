"""What limits the CPU kernels' inner loops: memory or the processor (kernel_mca.py), and by how much."""
import kernel_mca
from kernel_values import TILE

# Clock in GHz, and GB/s that one thread read from memory, of processors that were at hand (docs/measurements). For Zen 5 the
# runs say 27 to 35 GB/s, alone and in pages of 2 MiB up to 42; its clock is not known. Sapphire Rapids: decode of 1B Q4_0 moved
# 10.5 GB/s, a share of 0.77.
MEMORY = {"znver5": (3.5, 33), "znver3": (3.24, 18), "icelake-server": (2.8, 10), "sapphirerapids": (2.6, 14)}
# Of processors that were never at hand: what a fast core reads.
ASSUMED = 3.5, 33


def memory_rate(cpu, args):
    """Bytes per cycle that memory delivers to one core."""
    clock, gb_s = MEMORY.get(cpu, ASSUMED)
    return (args.bandwidth or gb_s) / (args.clock or clock)


def fact(cpus, args):
    """How fast memory is taken to be, for each processor."""
    known = {cpu: MEMORY.get(cpu, ASSUMED) for cpu in cpus}
    rates = {}
    for cpu, (clock, gb_s) in known.items():
        rates.setdefault((args.bandwidth or gb_s, args.clock or clock), []).append(cpu)
    return "memory delivers to one core: " + "; ".join(
        f"{gb_s:g} GB/s at {clock:g} GHz, {gb_s / clock:.1f} bytes per cycle ({', '.join(names)})"
        for (gb_s, clock), names in rates.items())


def cell(kernel, estimate, cpu, args):
    """The loop's bytes per cycle, what binds, and the loop's rate as a multiple of memory's."""
    rate = kernel.n_bytes / estimate.cycles
    ratio = rate / memory_rate(cpu, args)
    return f"{rate:.1f}, {'memory' if ratio >= 1 else estimate.binding}, {ratio:.2f}x"


def best(kernels, found, cpu):
    """The kernels of the processor's fastest level, by group and name."""
    own = {}
    for level in kernel_mca.PROCESSORS:  # fastest first
        for kernel in kernels:
            if kernel.level == level and cpu in found[kernel.id]:
                own.setdefault(f"{kernel.group} {kernel.name}", kernel)
    return own


def table(kernels, found, cpus, args):
    """The bounds of all kernels that read weights or a cache, as Markdown."""
    own = {cpu: best([k for k in kernels if k.n_bytes], found, cpu) for cpu in cpus}
    own = {cpu: rows for cpu, rows in own.items() if rows}
    names = {name: None for rows in own.values() for name in rows}
    per_tile = {name: kernel.n_bytes * TILE / kernel.n_values for rows in own.values() for name, kernel in rows.items()}
    lines = [f"| {' | '.join(['kernel', 'bytes', *own])} |", "| --- | ---: " + "| --- " * len(own) + "|"]
    for name in sorted(names, key=lambda name: (name.split()[0], name)):
        cells = [cell(rows[name], found[rows[name].id][cpu], cpu, args) if name in rows else "" for cpu, rows in own.items()]
        lines.append(f"| {' | '.join([name, f'{per_tile[name]:.0f}', *cells])} |")
    return "\n".join(lines)
