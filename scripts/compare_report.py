"""The results of scripts/compare_llama_cpp for a file, as a section of docs/measurements/llama-cpp.md."""
import datetime
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import median

import llama_cpp_venv


def processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    values = {}
    for line in lines:
        key, _, value = line.partition(":")
        values.setdefault(key.strip(), value.strip())
    if "model name" not in values:
        return platform.processor() or platform.machine()
    # Virtual machines often hide the name; family and model say which generation it is.
    return f"{values['model name']} (family {values.get('cpu family', '?')}, model {values.get('model', '?')})"


def machine(args):
    try:
        load = f"; load {os.getloadavg()[0]:.1f} at the end, including these runs"
    except OSError:
        load = ""
    return f"{processor()}, {max(args.threads)} of {os.cpu_count()} CPUs{load}"


def commit():
    result = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True,
                          cwd=Path(__file__).parent)
    return result.stdout.strip() or "no commit"


def comparison(found):
    activation = found["info"]["model"].get("activation", "silu")
    if found["same"]:
        return "both compute every neuron of the same file, unless the density says otherwise"
    return (f"ours with the file's activation ({activation}; see the density), llama.cpp's dense run with SiLU;\n"
            "          perplexity against our own dense run of the file as it is, since llama.cpp computes another model")


def ratios(values):
    low, high = min(values), max(values)
    return f"{median(values):.3f}, {low:.3f} to {high:.3f}"


def rate_row(name, rounds):
    mine, theirs = ([r["rate"] for r in side] for side in zip(*rounds))
    first = rounds[0][0]
    cells = ["", "", ""]
    if first["bytes_per_token"]:
        shares = [r["bandwidth_share"] for r, _ in rounds if r["bandwidth_share"]]
        share = f"{median(shares):.2f}" if shares else "not measured"
        cells = [f"{median(r['bytes_per_token'] for r, _ in rounds) / 1e6:.0f}", share, f"{first['density']:.3f}"]
    ratio = ratios([m / t for m, t in zip(mine, theirs)])
    return f"| {name} | {median(mine):.2f} | {median(theirs):.2f} | {ratio} | {' | '.join(cells)} |"


def perplexity_row(rounds, n_ctx):
    mine, theirs = rounds[0]
    values = [[r["ppl"] for r in side] for side in zip(*rounds)]
    theirs_is = "ours, dense" if "density" in theirs else "llama.cpp"
    name = f"perplexity of {mine['n_predicted']} tokens, context {n_ctx} (second: {theirs_is})"
    if mine["n_predicted"] != theirs["n_predicted"]:
        name += f", THE PEER PREDICTED {theirs['n_predicted']}"
    ratio = [m / t for m, t in zip(*values)]
    return (f"| {name} | {median(values[0]):.4f} | {median(values[1]):.4f} | {median(ratio):.5f}, {min(ratio):.5f} to "
            f"{max(ratio):.5f} | | | {mine['density']:.3f} |")


def bound(found):
    """The time to read a token's bytes at the bandwidth measured in the same run, and the ratio of both engines to it."""
    rounds = [(mine, theirs) for mine, theirs in found["tests"]["tg"] if mine["read_bandwidth_gb_s"]]
    if not rounds:
        return "There is no bound, because the read bandwidth could not be measured."
    dense = found["dense"]["bytes_per_token"]
    bandwidths = [mine["read_bandwidth_gb_s"] for mine, _ in rounds]
    least = [1e-6 * mine["bytes_per_token"] / mine["read_bandwidth_gb_s"] for mine, _ in rounds]
    least_dense = [1e-6 * dense / bandwidth for bandwidth in bandwidths]
    away = median(1e3 / mine["rate"] / ms for (mine, _), ms in zip(rounds, least))
    peer_away = median(1e3 / theirs["rate"] / ms for (_, theirs), ms in zip(rounds, least_dense))
    share = median(1e-9 * dense * theirs["rate"] / mine["read_bandwidth_gb_s"] for mine, theirs in rounds)
    return (f"Decode: {median(bandwidths):.1f} GB/s read in these runs ({min(bandwidths):.1f} to {max(bandwidths):.1f}). "
            f"Our bound is {median(least):.2f} ms per\ntoken; ours takes {away:.2f} times that (median of rounds). "
            f"llama.cpp reads {dense / 1e6:.0f} MB per token: its bound is\n{median(least_dense):.2f} ms, "
            f"and it takes {peer_away:.2f} times as long ({share:.2f} of the bandwidth).")


def peer(about):
    """Version and features of llama.cpp."""
    features = ", ".join(about["features"])
    if llama_cpp_venv.has_amx() and "AMX_INT8" not in about["features"]:
        features += "; built without AMX, which the processor has"
    return f"llama-cpp-python {about['version']}: {features}"


def facts(found, about):
    args, info = found["args"], found["info"]
    name = info["metadata"].get("general.name", "")
    kind = max(info["types"], key=lambda t: info["types"][t]["bytes"])
    synthetic = "synthetic weights" if "synthetic" in name else "weights not marked as synthetic"
    threads = "; ".join(f"{test}: {', '.join(f'{engine} {n}' for engine, n in best.items())}"
                        for test, best in found["threads"].items())
    peer_model = f"; llama.cpp runs {args.peer_model.name}" if args.peer_model else ""
    unfinished = ", fewer than a result needs" if args.rounds < 7 else ""
    return [
        f"machine   {machine(args)}",
        f"model     {Path(info['file']).name}: {name}, {kind}, {info['size_bytes'] / 1e6:.0f} MB; {synthetic}{peer_model}",
        f"compared  {comparison(found)}",
        f"peer      {peer(about)}",
        f"command   scripts/compare_llama_cpp {shlex.join(without_folders(sys.argv[1:]))}",
        f"rounds    {args.rounds}, in turn{unfinished}; threads, the best of {args.threads[0]} to {args.threads[-1]}: {threads}",
    ]


def without_folders(words):
    """The command line without the folders of this machine."""
    return [Path(word).name if "/" in word else word for word in words]


def report(found, about):
    args, tests = found["args"], found["tests"]
    title = f"## {Path(found['info']['file']).name} against llama.cpp ({datetime.date.today()}, {commit()})"
    lines = [title, "", "```text", *facts(found, about), "```", "",
             "| test | ours | llama.cpp | ratio by round (median, min to max) | MB per token | share of bandwidth | density |",
             "| --- | ---: | ---: | --- | ---: | ---: | ---: |"]
    if "tg" in tests:
        lines.append(rate_row(f"decode {args.n}, tok/s", tests["tg"]))
    if "pp" in tests:
        lines.append(rate_row(f"prompt {args.p}, tok/s", tests["pp"]))
    if "ppl" in tests:
        lines.append(perplexity_row(tests["ppl"], args.ctx))
    if "tg" in tests:
        lines += ["", bound(found)]
    return "\n".join(lines) + "\n"
