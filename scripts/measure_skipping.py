#!/usr/bin/env python3
"""What could be skipped in a small model, before anybody builds it: an independent forward pass in numpy.

    measure_skipping.py MODEL LEARN MEASURE [--rank 64] [--tokens 16384] [--chunks 12]

MODEL is a GGUF file of the llama family in F16 or F32; LEARN and MEASURE are files of token ids (`thermocline tokenize`).
Printed are, for models with ReLU, the lists that a predictor needs which reads the block's own input, what the layer
before leaves (before attention), the block's input of the layer before, and one that has a sign for each weight of the
gate; for all models what it costs to drop the smallest inputs of linear layers (TEAL).

Source: the rule of the lists is that of src/predictor/scale.rs; TEAL is Liu et al. 2024.
"""
import argparse
from math import erf

import gguf
import numpy as np

GRID = np.linspace(-12, 12, 24001)
BELOW = np.array([0.5 * (1 + erf(z / 2**0.5)) for z in GRID])


class Model:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        key = lambda name, default=None: reader.fields[name].contents() if name in reader.fields else default
        self.t = {t.name: np.array(t.data, dtype=np.float32).reshape(t.shape[::-1]) for t in reader.tensors}
        self.n_layer, self.n_head = key("llama.block_count"), key("llama.attention.head_count")
        self.n_kv, self.base = key("llama.attention.head_count_kv"), key("llama.rope.freq_base", 10000.0)
        self.relu = key("llama.hidden_activation", "silu") == "relu"
        self.eps = key("llama.attention.layer_norm_rms_epsilon")

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(1, keepdims=True) + self.eps) * self.t[name]

    def rope(self, x):
        n, _, width = x.shape
        angle = np.arange(n)[:, None] / self.base ** (np.arange(0, width, 2) / width)
        cos, sin = (f(angle)[:, None, :].astype(np.float32) for f in (np.cos, np.sin))
        even, odd = x[..., ::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    def logits(self, ids, cut=lambda site, x: x, watch=lambda *_: None):
        """`cut(site, x)` gives what a linear layer is shown for its input x; `watch` sees each block."""
        x, n = self.t["token_embd.weight"][ids], len(ids)
        for i in range(self.n_layer):
            w = lambda name: self.t[f"blk.{i}.{name}.weight"]
            left = self.norm(x, f"blk.{i}.ffn_norm.weight")
            h = cut((i, "qkv"), self.norm(x, f"blk.{i}.attn_norm.weight"))
            split = lambda name, heads: (h @ w(name).T).reshape(n, heads, -1)
            q, k = self.rope(split("attn_q", self.n_head)), self.rope(split("attn_k", self.n_kv))
            k, v = (m.repeat(self.n_head // self.n_kv, 1) for m in (k, split("attn_v", self.n_kv)))
            s = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[2])
            s = np.where(np.tril(np.ones((n, n), bool)), s, -np.inf)
            s = np.exp(s - s.max(-1, keepdims=True))
            y = np.einsum("hij,jhd->ihd", s / s.sum(-1, keepdims=True), v).reshape(n, -1)
            x = x + cut((i, "o"), y.astype(np.float32)) @ w("attn_output").T
            h = self.norm(x, f"blk.{i}.ffn_norm.weight")
            g, u = (cut((i, name), h) @ w(f"ffn_{name}").T for name in ("gate", "up"))
            watch(i, left, h, g, u)
            act = np.maximum(g, 0) if self.relu else g / (1 + np.exp(-g))
            x = x + cut((i, "down"), act * u) @ w("ffn_down").T
        out = self.t.get("output.weight", self.t["token_embd.weight"])
        return self.norm(x, "output_norm.weight") @ out.T


def chunks(path, most, n=512):
    ids = [int(i) for i in open(path).read().replace(",", " ").replace("[", " ").replace("]", " ").split()]
    pieces = [np.array([1] + ids[at : at + n - 1]) for at in range(0, min(len(ids), most) - n, n - 1)]
    return pieces


def seen(model, pieces):
    """Per layer: what the layer before left, the input, gate and up."""
    all_ = [([], [], [], []) for _ in range(model.n_layer)]
    for ids in pieces:
        model.logits(ids, watch=lambda i, *what: [to.append(w) for to, w in zip(all_[i], what)])
    return [tuple(np.concatenate(part) for part in layer) for layer in all_]


def factors(x, g, rank):
    """The best linear map of this rank from x to g."""
    c = (x.T @ x) / len(x) + 1e-4 * np.mean(x * x) * np.eye(x.shape[1])
    root = np.linalg.cholesky(c)
    seen_ = np.linalg.solve(root, x.T @ g / len(x)).T  # E[g x^T] L^-T
    u, s, vt = np.linalg.svd(seen_, full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ (vt[:rank] @ np.linalg.inv(root))


def signs(w, block=128):
    blocks = w.reshape(len(w), -1, block)
    return (np.sign(blocks) * np.abs(blocks).mean(2, keepdims=True)).reshape(w.shape)


def lists(map_, learn, held, down, gate_mean=True):
    """Share listed at a relative error of 0.05, and at a weighted recall of 0.98."""
    (x, g, u), (hx, hg, hu) = learn, held
    s, hs = x @ map_.T, hx @ map_.T
    slope = ((s - s.mean(0)) * (g - g.mean(0))).mean(0) / s.var(0)
    slope = np.where(slope > 0, slope, 1)
    mean = g.mean(0) - slope * s.mean(0)
    dev = np.maximum((g - slope * s).std(0), 1e-6)
    lengths = np.linalg.norm(down, axis=0)
    h = np.maximum(g, 0) * u
    weight = lengths * np.sqrt((h * h).sum(0) / np.maximum((np.maximum(g, 0) ** 2).sum(0), 1e-9))
    z = (slope * hs + mean) / dev
    below = np.interp(z, GRID, BELOW)
    loss = (weight * dev) ** 2 * ((z * z + 1) * below + z * np.exp(-z * z / 2) / np.sqrt(2 * np.pi))
    hh = np.maximum(hg, 0) * hu
    size = ((hh @ down.T) ** 2).sum()
    lines = np.quantile(loss, np.linspace(0.3, 0.99, 140))
    out = [None, None]
    parts = np.abs(hh) * lengths
    for line in lines[::-1]:
        on = loss >= line
        error = np.sqrt((((hh * ~on) @ down.T) ** 2).sum() / size)
        recall = (parts * on).sum() / parts.sum()
        if out[0] is None and error <= 0.05:
            out[0] = on.mean()
        if out[1] is None and recall >= 0.98:
            out[1] = on.mean()
        if None not in out:
            break
    return [1.0 if v is None else v for v in out]


def predictors(model, args):
    learn, held = seen(model, chunks(args.learn, args.tokens)), seen(model, chunks(args.measure, 6144))
    print(f"rank {args.rank}; share of neurons listed at a relative error of 0.05, and at a weighted recall of 0.98")
    print("layer  fires  own input     before attention  the block before  signs")
    for i in range(model.n_layer):
        left, x, g, u = learn[i]
        hleft, hx, hg, hu = held[i]
        w, down = (model.t[f"blk.{i}.ffn_{n}.weight"] for n in ("gate", "down"))
        row = [lists(factors(x, g, args.rank), (x, g, u), (hx, hg, hu), down)]
        row.append(lists(factors(left, g, args.rank), (left, g, u), (hleft, hg, hu), down))
        if i:
            past, hpast = learn[i - 1][1], held[i - 1][1]
            row.append(lists(factors(past, g, args.rank), (past, g, u), (hpast, hg, hu), down))
        else:
            row.append([float("nan")] * 2)
        row.append(lists(signs(w), (x, g, u), (hx, hg, hu), down))
        cells = "  ".join(f"{100 * a:5.1f} % {100 * b:5.1f} %" for a, b in row)
        print(f"{i:5}  {100 * (hg > 0).mean():4.1f} %  {cells}", flush=True)


def teal(model, args):
    pieces = chunks(args.measure, 512 * args.chunks)
    dense = [model.logits(ids) for ids in pieces]
    inputs = {}

    def gather(site, x):
        inputs.setdefault(site, []).append(np.abs(x).ravel()[::7])
        return x

    for ids in chunks(args.learn, 4096):
        model.logits(ids, cut=gather)
    inputs = {site: np.concatenate(parts) for site, parts in inputs.items()}
    everywhere = {"qkv", "o", "gate", "up", "down"}
    choices = {"all linear layers": everywhere, "attention alone": {"qkv", "o"}, "gate and up alone": {"gate", "up"}}
    print("inputs dropped of    share  mean KLD   same top token")
    for name, sites in choices.items():
        for share in (0.1, 0.25, 0.4, 0.5):
            lines = {s: np.quantile(a, share) for s, a in inputs.items() if s[1] in sites}
            cut = lambda site, x: np.where(np.abs(x) < lines[site], 0, x) if site in lines else x
            divergence, same, n = 0.0, 0, 0
            for ids, reference in zip(pieces, dense):
                half = len(ids) // 2
                a, b = (l - l.max(1, keepdims=True) for l in (reference[half:], model.logits(ids, cut=cut)[half:]))
                a, b = (l - np.log(np.exp(l).sum(1, keepdims=True)) for l in (a, b))
                divergence += (np.exp(a) * (a - b)).sum()
                same += (a.argmax(1) == b.argmax(1)).sum()
                n += len(a)
            print(f"{name:20} {100 * share:4.0f} %  {divergence / n:.5f}  {100 * same / n:7.2f} %", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "learn", "measure"):
        parser.add_argument(name)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--chunks", type=int, default=12)
    args = parser.parse_args()
    model = Model(args.model)
    ids = chunks(args.measure, 2048)
    nll = []
    for piece in ids:
        l = model.logits(piece)[256:-1]
        l = l - l.max(1, keepdims=True)
        nll.append(np.log(np.exp(l).sum(1)) - l[np.arange(len(l)), piece[257:]])
    print(f"perplexity of the first {len(ids)} chunks: {np.exp(np.concatenate(nll).mean()):.3f}")
    if model.relu:
        predictors(model, args)
    teal(model, args)


if __name__ == "__main__":
    main()
