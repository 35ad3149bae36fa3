"""llvm-mca's estimates for the inner loops of the CPU kernels (kernel_loops.py)."""
import functools
import re
from dataclasses import dataclass

import llvm_tools

# Processors by SIMD level. Cascade Lake is Skylake-AVX512's core with VNNI, which the AVX-512 kernels need.
PROCESSORS = {
    "avx512": ["znver5", "znver4", "sapphirerapids", "icelake-server", "cascadelake"],
    "avx2": ["znver5", "znver4", "znver3", "sapphirerapids", "icelake-server", "cascadelake", "haswell"],
    "neon": ["neoverse-n2", "apple-m1"],
}
# A model of the scheduler has a prefix that its resources share.
MODELS = {"Zn5": "znver5", "Zn4": "znver4", "Zn3": "znver3", "Zn2": "znver2", "Zn": "znver1", "SPR": "sapphirerapids",
          "ICX": "icelake-server", "SKX": "skylake-avx512", "SKL": "skylake", "BW": "broadwell", "HW": "haswell",
          "SB": "sandybridge", "N2": "neoverse-n2", "V1": "neoverse-v1", "V2": "neoverse-v2", "Cy": "cyclone"}
TRIPLES = {"avx512": "x86_64", "avx2": "x86_64", "neon": "aarch64"}
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
    code = "add x0, x0, x0" if level == "neon" else "addq %rax, %rax"
    text = llvm_tools.output("llvm-mca", f"-mtriple={TRIPLES[level]}", f"-mcpu={processor}", "-iterations=1", stdin=code)
    names = re.findall(r"^\[[\d.]+\]\s+- (\w+)", text, re.MULTILINE)
    prefix = next((p for p in sorted(MODELS, key=len, reverse=True) if names and all(n.startswith(p) for n in names)), None)
    return MODELS.get(prefix, processor)


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
    text = ""
    for name, code in codes.items():
        lines = [re.sub(r"\s*<[^>]*>", "", line) for line in code]
        text += "\n".join([f"# LLVM-MCA-BEGIN {name}", *lines, "# LLVM-MCA-END", ""])
    result = llvm_tools.run("llvm-mca", f"-mtriple={TRIPLES[level]}", f"-mcpu={processor}", f"-iterations={iterations}",
                            "-instruction-info=0", "-resource-pressure=0", stdin=text)
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
        own.setdefault(model(processor, level), []).append(processor)
    # A model that several share has the name of the processor that it describes, if that is among them.
    return [next((p for p in shared if p == name), shared[0]) for name, shared in own.items()]


def notes(levels):
    """Which processors have no model of their own."""
    found = {}
    for level in levels:
        for processor in PROCESSORS[level]:
            if model(processor, level) != processor:
                found[processor] = f"this LLVM has no model of {processor} and uses that of {model(processor, level)}"
    return list(found.values())
