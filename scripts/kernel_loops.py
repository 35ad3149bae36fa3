"""The inner loops of the CPU kernels: compiles backends/simd, disassembles it and finds the loop of each kernel.

A kernel is found by its path in the crate (`avx512::dot::rows`) and by the functions inlined into it, which debug
information names (`q4_0<1>`, `for_tiles<288, ..>`). Its loop is the innermost loop without calls that multiplies most.
"""
import json
import re
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import llvm_tools
from kernel_values import FORMAT, tile_bytes, tile_format, values_of

ROOT = Path(__file__).resolve().parent.parent
CRATE = "thermocline_simd"
# Levels of the types that choose the products of NEON kernels (backends/simd/src/neon).
PRODUCTS = {"WideningProducts": "neon", "DotProducts": "neon-dotprod", "MatrixProducts": "neon-i8mm"}
# Groups of modules whose name is not that of their group.
GROUPS = {"plain": "dot", "panel_vnni": "panel"}
# Products of one group of a panel: at most 32 rows, 32 columns and 8 tokens.
MAX_GROUP_PRODUCTS = 32 * 32 * 8
# Formats whose rows are added without unpacking them first (backends/simd/src/sum_rows.rs).
WITHOUT_UNPACKING = ("f32", "f16", "bf16", "q4_0", "q4_1", "q8_0")
PRODUCTS_TYPE = re.compile(rf"{CRATE}::neon::(?:panel_)?products::({'|'.join(PRODUCTS)})(?:, )?")


# --- compiling ---------------------------------------------------------------------------------------------------


def installed_targets():
    """Targets for which this toolchain has a standard library."""
    root = Path(subprocess.run(["rustc", "--print", "sysroot"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip())
    return [path.parent.name for path in root.glob("lib/rustlib/*/lib")]


def compile_crate(target, folder):
    """Compiles backends/simd as in a release; returns a shared library with all kernels and their debug information."""
    command = ["cargo", "rustc", "-p", CRATE.replace("_", "-"), "--release", "--target", target, "--target-dir", folder,
               "--config", "profile.release.debug=1", "--message-format", "json-render-diagnostics", "--",
               "--emit", "obj", "-C", "symbol-mangling-version=v0", "-C", "codegen-units=1"]
    result = subprocess.run([str(w) for w in command], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        raise SystemExit(f"cargo rustc failed (exit {result.returncode})")
    artifacts = [json.loads(line) for line in result.stdout.splitlines()]
    names = [Path(name) for one in artifacts if one.get("target", {}).get("name") == CRATE for name in one["filenames"]]
    # The name in `deps` has the hash that the object's name has.
    objects = {path.with_name(path.stem.removeprefix("lib") + ".o") for path in names if path.parent.name == "deps"}
    if len(objects) != 1 or not min(objects).exists():
        raise SystemExit(f"cargo wrote no object of {CRATE}: remove {folder} and try again")
    library = folder / f"{CRATE}-{target}.so"
    # Only a linked file has an address per function; nothing ever runs it.
    linker = "cc" if target.startswith("x86_64") else target.replace("-unknown", "") + "-gcc"
    subprocess.run([linker, "-shared", "-nostdlib", "-Wl,--unresolved-symbols=ignore-all", "-o", library, *objects],
                   check=True)
    return library


# --- functions and their loops -----------------------------------------------------------------------------------


@dataclass
class Instruction:
    address: int
    text: str

    @cached_property
    def mnemonic(self):
        return self.text.removeprefix("{vex} ").split(None, 1)[0]

    @cached_property
    def target(self):
        """The address that a direct branch goes to."""
        found = re.search(r"0x([0-9a-f]+) <", self.text)
        return int(found[1], 16) if found else None


def register(name):
    """One name for a register of any width."""
    return re.sub(r"^[re](?=[a-z]{2}$)|^[wx](?=\d)|(?<=\d)[dwb]$|(?<=[a-d])l$", "", name.lstrip("%")) if name else name


class Architecture:
    """How to read one architecture's instructions."""

    def __init__(self, name):
        self.x86 = name.startswith("x86_64")
        self.comment = "#" if self.x86 else "//"
        calls, ends, jumps, multiplies = (
            (r"call", r"(ret|ud2|hlt|jmp)", r"j", r"vpdp|vpmadd|vf[n]?m(add|sub)|vdpbf16|vpmulld") if self.x86 else
            (r"bl$|blr$", r"(ret|brk|udf|b|br)$", r"b$|b\.|cbn?z|tbn?z",
             r"[su]dot|usdot|[su]mmla|bfdot|bfmmla|fml[as]|fmlal|[su]ml[as]l|[su]mull"))
        self.is_call, self.ends, self.is_jump = (re.compile(p).match for p in (calls, ends, jumps))
        self.multiplies = re.compile(multiplies).match
        self.adds = re.compile("vaddps" if self.x86 else "fadd$").match
        self.accumulates = re.compile(rf"{multiplies}|{'vaddps' if self.x86 else 'fadd$'}").match

    def is_vector(self, instruction):
        if self.x86:
            return instruction.mnemonic.startswith("v") and not instruction.mnemonic.startswith("vzero")
        return bool(re.search(r"\b[vqs]\d+\b", instruction.text)) and not instruction.mnemonic.startswith("st")

    def increments(self, path):
        """By how much each register grows in an iteration: the sum of the constants that are added to it."""
        sums, later = defaultdict(int), {}
        for instruction in path:
            if self.x86:
                copy = re.match(r"movq (%\w+), (%\w+)$", instruction.text)
                add = re.match(r"(add|sub)[ql] \$(-?0x[0-9a-f]+|-?\d+), (%\w+)$", instruction.text)
                one = re.match(r"(inc|dec)[ql] (%\w+)$", instruction.text)
                lea = re.match(r"leaq (-?0x[0-9a-f]+)\((%\w+)\), (%\w+)$", instruction.text)
                if add:
                    sums[register(add[3])] += int(add[2], 0) * (1 if add[1] == "add" else -1)
                elif one:
                    sums[register(one[2])] += 1 if one[1] == "inc" else -1
                elif lea and lea[2] == lea[3]:
                    sums[register(lea[3])] += int(lea[1], 0)
                elif lea:
                    later[lea[3]] = lea[2], int(lea[1], 0)
                elif copy and later.get(copy[1], [None])[0] == copy[2]:
                    # The next value is compared before it is copied to the counter.
                    sums[register(copy[2])] += later[copy[1]][1]
            else:
                add = re.match(r"(add|sub)s? ([wx]\d+), ([wx]\d+), #(0x[0-9a-f]+|\d+)$", instruction.text)
                after = re.search(r"\[([wx]\d+)\], #(-?0x[0-9a-f]+|-?\d+)$", instruction.text)
                if add and register(add[2]) == register(add[3]):
                    sums[register(add[2])] += int(add[4], 0) * (1 if add[1] == "add" else -1)
                elif after:
                    sums[register(after[1])] += int(after[2], 0)
        return {name: value for name, value in sums.items() if value}

    def trips(self, inner, outer):
        """How often a loop runs, from the constants at which its counter begins (in the code around it) and ends."""
        steps = self.increments(inner)
        begin = re.compile(r"mov[lqb] \$(-?0x[0-9a-f]+|-?\d+), (%\w+)$" if self.x86 else r"mov ([wx]\d+), #(-?0x[0-9a-f]+|-?\d+)$")
        zero = re.compile(r"xorl (%\w+), \1$" if self.x86 else r"mov ([wx]\d+), [wx]zr$")
        end = re.compile(r"cmp[lq] \$(-?0x[0-9a-f]+|-?\d+), (%\w+)$" if self.x86 else r"cmp ([wx]\d+), #(-?0x[0-9a-f]+|-?\d+)$")

        def parts(found):
            return (found[2], found[1]) if self.x86 else (found[1], found[2])

        starts = {}
        for instruction in outer:
            if found := begin.match(instruction.text):
                name, value = parts(found)
                starts[register(name)] = int(value, 0)
            elif found := zero.match(instruction.text):
                starts[register(found[1])] = 0
        for instruction in reversed(inner):
            if found := end.match(instruction.text):
                name, value = parts(found)
                name, value = register(name), int(value, 0)
                copied = re.search(rf"movq %r?{re.escape(name)}, (%\w+)$", "\n".join(i.text for i in inner), re.MULTILINE)
                name = register(copied[1]) if name not in steps and copied else name
                if name in steps and name in starts and (value - starts[name]) % steps[name] == 0:
                    return (value - starts[name]) // steps[name]
            # Two iterations, the first of which leaves a flag.
            flag = re.match(r"testb \$(0x)?1, %\w+$|tbn?z [wx](\d+), #(0x)?0,", instruction.text)
            if flag and (self.x86 or any(re.match(rf"mov [wx]{flag[2]}, ", i.text) for i in inner)):
                return 2
        for name, step in steps.items():
            if starts.get(name) and starts[name] % step == 0 and starts[name] // step < 0:
                return -starts[name] // step  # counts to zero
        return None

    def loads(self, path):
        """The loads and prefetches of a path, without the arithmetic that is fused with them."""
        for instruction in path:
            if not self.x86:
                if re.match(r"ld|prfm", instruction.mnemonic):
                    yield instruction.text
                continue
            memory = re.search(r"(-?0x[0-9a-f]+)?\([^)]*\)", instruction.text)
            if not memory or instruction.mnemonic.startswith(("lea", "nop")):
                continue
            if instruction.mnemonic.startswith("prefetch"):
                yield instruction.text
            elif not instruction.text.endswith(")"):
                wide = re.search(r"%([xyz]mm)", instruction.text)
                yield f"vmovups {memory[0]}, %{wide[1]}0" if wide else f"movq {memory[0]}, %rax"

    def unpacking(self, path):
        """Vector instructions of a path that neither multiply nor only move between memory and registers."""
        for instruction in path:
            moves = re.match(r"vmov[^s].*\(", instruction.text) if self.x86 else re.match(r"ld|st", instruction.mnemonic)
            if self.is_vector(instruction) and not moves and not self.multiplies(instruction.mnemonic):
                yield instruction.text


def read_functions(library, arch):
    """Instructions of each function of the crate's SIMD levels, by symbol."""
    text = llvm_tools.output("llvm-objdump", "-d", "--no-show-raw-insn", library)
    functions, current = {}, None
    for line in text.splitlines():
        header = re.match(r"([0-9a-f]+) <(.*)>:$", line)
        if header:
            current = functions.setdefault(header[2], [])
            continue
        found = re.match(r"\s*([0-9a-f]+):\s+(\S.*)$", line)
        if found and current is not None:
            code = re.split(r"\s+" + re.escape(arch.comment) + r" ", found[2])[0]
            current.append(Instruction(int(found[1], 16), " ".join(code.split())))
    return functions


class Graph:
    """The basic blocks of a function without calls."""

    def __init__(self, instructions, arch):
        self.arch = arch
        starts, known = {instructions[0].address}, {i.address for i in instructions}
        for here, after in zip(instructions, [*instructions[1:], None]):
            if arch.is_jump(here.mnemonic) or arch.ends(here.mnemonic):
                starts |= {address for address in (here.target, after and after.address) if address in known}
        self.blocks, block = {}, None
        for instruction in instructions:
            if instruction.address in starts:
                block = self.blocks.setdefault(instruction.address, [])
            block.append(instruction)
        order = [*self.blocks, None]
        self.next = {}
        for start, following in zip(order, order[1:]):
            last, targets = self.blocks[start][-1], []
            if last.target in self.blocks and arch.is_jump(last.mnemonic):
                targets.append(last.target)
            if not arch.ends(last.mnemonic) and following is not None:
                targets.append(following)
            self.next[start] = targets
        calls = {start for start, block in self.blocks.items() if any(arch.is_call(i.mnemonic) for i in block)}
        self.without_calls = {b: [t for t in ts if t not in calls] for b, ts in self.next.items() if b not in calls}

    def loops(self, nodes=None, header=None):
        """All loops among `nodes` but the one with this header, outermost first."""
        found = []
        for part in self.components(set(self.without_calls) if nodes is None else nodes, header):
            # A block with calls may jump into the middle of a loop, so other entries count first.
            entries = [(b not in self.without_calls, t) for b, ts in self.next.items() if b not in part for t in ts if t in part]
            first = min(entries, default=(False, min(part)))[1]
            inner = self.loops(part, first)
            found += [Loop(self, first, part, inner), *inner]
        return found

    def components(self, nodes, header):
        """Sets of blocks that reach each other, in the graph without edges into `header`."""
        after = {b: [t for t in self.without_calls[b] if t in nodes and t != header] for b in nodes}
        before = {b: [] for b in nodes}
        for block, targets in after.items():
            for target in targets:
                before[target].append(block)

        def reached(block, edges):
            found, work = set(), [block]
            while work:
                fresh = [t for t in edges[work.pop()] if t not in found]
                found.update(fresh)
                work += fresh
            return found

        left, found = set(nodes), []
        while left:
            block = left.pop()
            part = reached(block, after) & reached(block, before)
            left -= part
            found += [part] if part else []
        return found


class Loop:
    """A loop without calls. The loops inside it are repeated as often as they run, or once if that is unknown."""

    def __init__(self, graph, header, nodes, inner):
        self.graph, self.header, self.nodes = graph, header, nodes
        self.children = [loop for loop in inner if not any(loop.nodes < other.nodes for other in inner)]
        self.is_exact = all(child.is_exact for child in self.children)
        self.own = [i for b in sorted(nodes) for i in graph.blocks[b] if not any(b in c.nodes for c in self.children)]
        self.path = self.longest_path()

    def longest_path(self):
        """Instructions of the longest way from the header back to it."""
        child_of = {block: child for child in self.children for block in child.nodes}
        code, best = {}, {}

        def instructions(block):
            child = child_of.get(block)
            if child is None:
                return self.graph.blocks[block]
            if id(child) not in code:
                trips = self.graph.arch.trips(child.own, self.own)
                self.is_exact = self.is_exact and trips is not None
                code[id(child)] = child.path * (trips or 1)
            return code[id(child)]

        def visit(block):
            """The longest way from a block to the header, None if there is none."""
            child = child_of.get(block)
            key = id(child) if child else block
            if key not in best:
                sources = child.nodes if child else {block}
                targets = {t for b in sources for t in self.graph.without_calls[b] if t not in (child.nodes if child else ())}
                ways = [[] if t == self.header else visit(t) for t in sorted(targets) if t in self.nodes]
                ways = [way for way in ways if way is not None]
                best[key] = [*instructions(block), *max(ways, key=len)] if ways else None
            return best[key]

        return visit(self.header) or []


# --- kernels -----------------------------------------------------------------------------------------------------


@dataclass
class Kernel:
    level: str  # avx2, avxvnni, avx512, neon, ..
    group: str  # dot, panel, sum_rows, ..: the module or the table's entry
    name: str
    path: list  # instructions of an iteration
    n_values: int | None  # weights per iteration
    n_bytes: int | None  # their bytes
    n_products: int  # multiplications per iteration

    @property
    def id(self):
        return f"{self.level} {self.group} {self.name}"

    @property
    def format(self):
        found = FORMAT.search(self.name)
        return found[0] if found else None


def symbolize(library, addresses):
    """The functions inlined at each address, innermost first."""
    lines = "\n".join(hex(address) for address in addresses)
    text = llvm_tools.output("llvm-symbolizer", "--inlines", "--output-style=JSON", "--functions=linkage", "--demangle",
                             f"--obj={library}", stdin=lines)
    entries = [json.loads(line) for line in text.splitlines() if line]
    return [[frame["FunctionName"] for frame in entry["Symbol"]] for entry in entries]


def hot_loops(loops, arch, group):
    """Numbers of products and loops. In most groups, these are loops whose inner loops run a known number of times: never the
    loop over rows, because the length of a row is unknown. Of dot products, the one with the most products; of panels and
    sums, where a function has several kernels, all of them. Of other groups, also loops whose inner loops do not multiply.
    """
    def counted(counts):
        return [(n, loop) for loop in loops if (n := sum(bool(counts(i.mnemonic)) for i in loop.path))]

    found = counted(arch.accumulates if group == "transposed" else arch.multiplies)
    if not found and group == "sum_rows":  # products may come from a table
        found = counted(arch.adds)
    if group in ("panel", "sum_rows"):
        return [(n, loop) for n, loop in found if loop.is_exact]
    if group != "dot":
        return [(n, loop) for n, loop in found if group == "attention" and loop.is_exact
                or not any(arch.accumulates(i.mnemonic) for child in loop.children for i in child.path)]
    return sorted([(n, loop) for n, loop in found if loop.is_exact], key=lambda one: (one[0], -len(one[1].path)))[-1:]


def level_of(folder, module, symbol):
    """The level of a function."""
    found = PRODUCTS_TYPE.search(symbol)
    return PRODUCTS[found[1]] if found else "avxvnni" if module == "panel_vnni" else folder


def first_match(pattern, *names):
    return next(filter(None, (re.search(pattern, name) for name in names)), None)


def kernel_name(symbol, frames):
    """The name of a function in its module; for functions that contain several kernels, of the one inlined into them."""
    symbol, *frames = (PRODUCTS_TYPE.sub("", name).replace("::<>", "") for name in (symbol, *frames))
    cache = first_match(r"::attention::of_(\w+)::(scores|add_weighted)$", *frames, symbol)
    if cache:
        n_queries = first_match(r"::(?:score|add_strip)::<(\d+)", *frames)
        return f"{cache[2]} {cache[1]}" + (f"<{n_queries[1]}>" if n_queries else "")
    inlined = [frame for frame in frames if "{closure" not in frame and frame.startswith(CRATE)]
    symbol = inlined[-1] if symbol.startswith("<") and inlined else symbol
    if re.search(r"::(rows(_by_four)?|sum|multiply)(::<\d+>)?$", symbol) and len(inlined) > 1:
        symbol = inlined[-2]
        tile = tile_bytes(frames)
        if "::dot::" in symbol and tile:  # the formats that are unpacked first
            symbol = re.sub(r"dots(?=::<|$)", tile_format(tile) or f"{tile} bytes a tile", symbol)
    codes = first_match(r"::(small|signed)_groups::<\d+, \w+(?:, (\d+))?>$", *frames)
    parts = (symbol.replace("::<", "<") + (f" {codes[1]} {codes[2] or ''}".rstrip() if codes else "")).split("::")
    plain = re.match(r"of_(\w+)$", parts[-2])
    return re.sub("dots|add_rows", plain[1], parts[-1]) if plain else parts[-1]


def products_at(loop, arch):
    return next(i.address for counts in (arch.multiplies, arch.adds) for i in loop.path if counts(i.mnemonic))


def is_whole(group, name, n_values, code, chains):
    """Whether a loop does all the work of its kernel: one group of a panel, but not the factors of its tokens; and in sums of
    rows, unpacking too, which may be a call or another loop."""
    if group == "panel":
        return n_values is not None and n_values <= MAX_GROUP_PRODUCTS
    if group != "sum_rows":
        return True
    kind = FORMAT.search(name)
    return bool(kind and n_values and (kind[0] in WITHOUT_UNPACKING or any("unpack" in f for i in code for f in chains[i.address])))


def kernels(library, arch, groups):
    """The kernels of the groups that match, each once, and the names of functions whose loop was not found."""
    functions = read_functions(library, arch)
    names = dict(zip(functions, llvm_tools.output("llvm-cxxfilt", stdin="\n".join(functions)).splitlines()))
    wanted = {}
    for symbol, instructions in functions.items():
        place = re.match(rf"<?{CRATE}::(avx2|avx512|neon)::(\w+)::", names[symbol])
        group = place and GROUPS.get(place[2], place[2])
        if not (place and instructions and groups.fullmatch(group)):
            continue
        hot = hot_loops(Graph(instructions, arch).loops(), arch, group)
        # A table's closures contain the kernels where all processors have their instructions.
        if "{closure" not in names[symbol] or hot and names[symbol].startswith("<"):
            wanted[symbol] = level_of(place[1], place[2], names[symbol]), group, hot
    addresses = {i.address for *_, hot in wanted.values() for _, loop in hot for i in [*loop.own, *loop.path]}
    # Without a loop, the calls have the name of what is called in it.
    addresses |= {i.address for symbol, (*_, hot) in wanted.items() if not hot for i in functions[symbol]}
    addresses = sorted(addresses)
    chains = dict(zip(addresses, symbolize(library, addresses)))
    found, missing = {}, []
    for symbol, (level, group, hot) in wanted.items():
        if not hot:
            longest = max((chains[i.address] for i in functions[symbol]), key=len)
            missing.append(f"{level} {group} {kernel_name(names[symbol], longest)}")
        for n_products, loop in hot:
            chain = chains[products_at(loop, arch)]
            name = kernel_name(names[symbol], chain)
            own = [chains[i.address] for i in loop.own]
            multiplications = [i for i in loop.path if (arch.accumulates if group == "transposed" else arch.multiplies)(i.mnemonic)]
            n_values, n_bytes = values_of(group, name, own, arch.increments(loop.own), multiplications)
            if not is_whole(group, name, n_values, [*loop.own, *loop.path], chains):
                continue
            kernel = Kernel(level, group, name, loop.path, n_values, n_bytes, n_products)
            # Functions may share a kernel: the largest copy counts.
            found[kernel.id] = max(found.get(kernel.id, kernel), kernel, key=lambda k: (k.n_products, len(k.path)))
    return list(found.values()), sorted(set(missing))
