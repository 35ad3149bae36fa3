"""llvm-mca's estimates for the inner loops of the CPU kernels (kernel_loops.py)."""
import functools
import re
from dataclasses import dataclass

import llvm_tools

# Processors by SIMD level. Cascade Lake is Skylake-AVX512's core with VNNI, which the AVX-512 kernels need.
PROCESSORS = {
    "avx512": ["znver5", "znver4", "sapphirerapids", "icelake-server", "cascadelake"],
    "avxvnni": ["znver5", "sapphirerapids", "alderlake"],
    "avx2": ["znver5", "znver4", "znver3", "sapphirerapids", "icelake-server", "cascadelake", "haswell"],
    "neon-i8mm": ["neoverse-v2", "neoverse-v1", "neoverse-n2"],
    "neon-dotprod": ["neoverse-v2", "neoverse-v1", "neoverse-n2", "neoverse-n1", "apple-m1"],
    "neon": ["neoverse-v2", "neoverse-v1", "neoverse-n2", "neoverse-n1", "apple-m1", "cortex-a72"],
}
# A model of the scheduler has a prefix that its resources share.
MODELS = {"Zn5": "znver5", "Zn4": "znver4", "Zn3": "znver3", "Zn2": "znver2", "Zn": "znver1", "SPR": "sapphirerapids",
          "ADLP": "alderlake", "ICX": "icelake-server", "SKX": "skylake-avx512", "SKL": "skylake", "BW": "broadwell", "HW": "haswell",
          "SB": "sandybridge", "N1": "neoverse-n1", "N2": "neoverse-n2", "V1": "neoverse-v1", "V2": "neoverse-v2",
          "A57": "cortex-a57", "Cy": "cyclone"}
# Processors that LLVM describes by the model of an older one, although they differ: options for that model, and whether a
# 512-bit instruction counts as its 256-bit one. Zen 4 executes 512 bits in two halves and dispatches six instructions per
# cycle, a Zen 5 server 512 bits at once and eight.
NARROWED = {("znver5", "znver4"): ["-dispatch=8"]}
# Instructions without a 256-bit form of the same name, and one that stands for them.
NARROW = {"64x4": "64x2", "32x8": "32x4"}
# Zen 4's model starts a `vpdpbusd` in the encoding of AVX-512 every two cycles, at any width, but in that of AVX-VNNI two per
# cycle, as a multiply-add, which stands for it: the same pipes and 4 cycles.
PRODUCTS_LIKE = {"znver4": {"vpdpbusd": "vfmadd231ps"}}
TRIPLES = {level: "aarch64" if level.startswith("neon") else "x86_64" for level in PROCESSORS}
# Iterations that are simulated: the first ones, which fill the pipeline, count little.
N_ITERATIONS = 200
# More cycles than resources explain by this factor wait for results of earlier instructions.
LATENCY = 1.25


@dataclass
class Estimate:
    cycles: float  # per iteration
    resources: float  # cycles per iteration if results were never waited for: uops and ports
    parts: dict  # the same for some of the instructions: loads, products, unpacking, dispatch

    @property
    def binding(self):
        """The part that takes longest, and whether dependencies take longer than all resources."""
        part = max(self.parts, key=self.parts.get)
        return f"{part}, latency" if self.cycles > LATENCY * self.resources else part


@functools.cache
def model(processor, level):
    """The processor whose scheduling model LLVM uses for this one."""
    code = "add x0, x0, x0" if TRIPLES[level] == "aarch64" else "addq %rax, %rax"
    text = llvm_tools.output("llvm-mca", f"-mtriple={TRIPLES[level]}", f"-mcpu={processor}", "-iterations=1", stdin=code)
    names = re.findall(r"^\[[\d.]+\]\s+- (\w+)", text, re.MULTILINE)
    prefix = next((p for p in sorted(MODELS, key=len, reverse=True) if names and all(n.startswith(p) for n in names)), None)
    return MODELS.get(prefix, processor)


def narrowed(line):
    """A 512-bit instruction as the same one with 256 bits."""
    if "%zmm" not in line:
        return line
    line = re.sub(r"%(zmm|ymm)", lambda found: "%ymm" if found[1] == "zmm" else "%xmm", line)
    line = re.sub(r"\{1to(\d+)\}", lambda found: f"{{1to{int(found[1]) // 2}}}", line)
    return re.sub("|".join(NARROW), lambda found: NARROW[found[0]], line).replace("{sae}, ", "")


def apart(line):
    """A store that increments its address, as two instructions: llvm-mca lets the address wait for the data."""
    found = re.match(r"(st[rp] .*\[(x\d+)\]), #(-?)(\w+)$", line)
    return [found[1], f"{'sub' if found[3] else 'add'} {found[2]}, {found[2]}, #{found[4]}"] if found else [line]


def regions(kernel, arch):
    """Code to simulate, by purpose."""
    path = [i for i in kernel.path if not re.match(r"jmp|b$|nop", i.mnemonic)]
    return {
        "all": [i.text for i in path],
        "load ports": list(arch.loads(path)),
        "products": [i.text for i in path if arch.multiplies(i.mnemonic)],
        "unpacking": list(arch.unpacking(path)),
    }


def simulate(level, processor, codes, iterations):
    """Cycles, block throughput, uops and dispatch width of each piece of code by its name; None for code that the model
    rejects."""
    text, used = "", model(processor, level)
    options, like = NARROWED.get((processor, used)), PRODUCTS_LIKE.get(used, {})
    for name, code in codes.items():
        lines = [re.sub(r"\s*<[^>]*>", "", line) for line in code]
        if options:
            lines = [narrowed(line) for line in lines]
        lines = [like[line.split()[0]] + line[len(line.split()[0]):] if line.split()[0] in like else line for line in lines]
        if TRIPLES[level] == "aarch64":
            lines = [part for line in lines for part in apart(line)]
            # The address of a branch may be too far away for the assembler.
            lines = [re.sub(r"^((?:c|t)bn?z .*|b(?:\..*)?) 0x[0-9a-f]+$", r"\1 #4", line) for line in lines]
        text += "\n".join([f"# LLVM-MCA-BEGIN {name}", *lines, "# LLVM-MCA-END", ""])
    result = llvm_tools.run("llvm-mca", f"-mtriple={TRIPLES[level]}", f"-mcpu={processor}", f"-iterations={iterations}",
                            "-instruction-info=0", "-resource-pressure=0", *(options or []), stdin=text)
    if result.returncode != 0:
        if len(codes) == 1:
            return {name: None for name in codes}
        found = {}
        for name, code in codes.items():
            found |= simulate(level, processor, {name: code}, iterations)
        return found
    pattern = r"^\[\d+\] Code Region - (.*)\n((?:.*\n)*?)(?=\n*\[\d+\] Code Region|\Z)"
    # A single region has no heading.
    bodies = re.findall(pattern, result.stdout, re.MULTILINE) if len(codes) > 1 else [(*codes, result.stdout)]
    found = {}
    for name, body in bodies:
        value = {key: float(number) for key, number in re.findall(r"^([\w ]+):\s+([\d.]+)$", body, re.MULTILINE)}
        found[name] = (value["Total Cycles"] / iterations, value["Block RThroughput"], value["Total uOps"] / iterations,
                       value["Dispatch Width"])
    return found


def estimates(kernels, arch):
    """Estimates by kernel id and processor."""
    found = {kernel.id: {} for kernel in kernels}
    for level in {kernel.level for kernel in kernels}:
        own = {kernel.id: regions(kernel, arch) for kernel in kernels if kernel.level == level}
        for processor in processors(level):
            whole = simulate(level, processor, {id: codes["all"] for id, codes in own.items()}, N_ITERATIONS)
            pieces = {f"{id}/{part}": code for id, codes in own.items() for part, code in codes.items() if code and part != "all"}
            partial = simulate(level, processor, pieces, 1)
            for id, result in whole.items():
                if result is None:
                    continue
                cycles, resources, uops, width = result
                parts = {part: value[1] for part in own[id] if (value := partial.get(f"{id}/{part}"))}
                found[id][processor] = Estimate(cycles, resources, parts | {"dispatch": uops / width})
    return found


def processors(level):
    """The level's processors with a model of their own: two with the same model have the same estimates."""
    own = {}
    for processor in PROCESSORS[level]:
        used = model(processor, level)
        own.setdefault(processor if (processor, used) in NARROWED else used, []).append(processor)
    # A model that several share has the name of the processor that it describes, if that is among them.
    return [next((p for p in shared if p == name), shared[0]) for name, shared in own.items()]


def notes(levels):
    """Which processors have no model of their own."""
    found = {}
    for level in levels:
        for processor in PROCESSORS[level]:
            used = model(processor, level)
            if (processor, used) in NARROWED:
                found[processor] = (f"this LLVM has no model of {processor}: {used}'s 256-bit instructions stand for 512 bits, "
                                    f"with {' '.join(NARROWED[processor, used]).strip('-')}")
            elif used != processor:
                found[processor] = f"this LLVM has no model of {processor} and uses that of {used}"
    return list(found.values())
