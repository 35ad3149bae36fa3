"""The commands of inject_faults: their words, their outputs, and how each is driven."""

import http.server
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

from byte_planes import BUILT_IN, unpack

# Files of a place that commands only read.
INPUTS = ("hf", "model.gguf", "experts.gguf", "lora.gguf", "text", "long", "fault.so")
PARTS = (".part", ".unfinished", ".tmp")
MODEL = ["-m", "model.gguf"]
SHORT = ["-p", "Once", "-n", "4", "-c", "64", "--temp", "0"]


class Command:
    """Words, outputs that are new or old afterwards, and text for standard input. Whether it is killed too, takes seconds, and
    saves its output in steps, which it resumes."""

    def __init__(self, words, *outputs, stdin=None, kills=False, rare=False, steps=False):
        self.words, self.outputs, self.stdin, self.kills, self.rare, self.steps = words, outputs, stdin, kills, rare, steps


PIECES = [f"piece-0000{n}-of-00005.gguf" for n in range(1, 6)]
COMMANDS = {
    "quantize": Command(["quantize", "model.gguf", "out.gguf", "q8_0", "--force"], "out.gguf", kills=True),
    "convert": Command(["convert", "hf", "-o", "out.gguf", "--force"], "out.gguf", kills=True),
    "merge": Command(["merge", "model.gguf", "out.gguf", "--force"], "out.gguf", kills=True),
    "split": Command(["split", "model.gguf", "piece", "--force", "--split-max-tensors", "8"], *PIECES, kills=True),
    "profile": Command(["profile", *MODEL, "--tokens", "256", "--restart", "--out", "out.gguf"], "out.gguf", kills=True),
    "imatrix": Command(["imatrix", *MODEL, "-f", "text", "-c", "64", "-o", "out.gguf"], "out.gguf", kills=True),
    "predictor": Command(
        ["predictor", *MODEL, "-f", "long", "--tokens", "1024", "--kind", "sign", "--restart", "-o", "out.gguf"], "out.gguf",
        kills=True, rare=True, steps=True,
    ),
    "run": Command(["run", *MODEL, *SHORT, "--prompt-cache", "cache", "--repack-cache", "packs"], "cache", kills=True),
    "run --no-mmap": Command(["run", *MODEL, "-f", "text", "-n", "2", "-c", "256", "--no-mmap"]),
    "run --ram-budget": Command(["run", "-m", "experts.gguf", *SHORT, "--ram-budget", "90MiB"]),
    "run --lora": Command(["run", *MODEL, *SHORT, "--lora", "lora.gguf"]),
    "chat": Command(["chat", *MODEL, "-n", "4", "-c", "128", "--temp", "0"], stdin="Hi\nMore\n/exit\n"),
    "perplexity": Command(["perplexity", *MODEL, "-f", "text", "-c", "32", "--kl-divergence-base", "out.gguf"], "out.gguf"),
    "bench": Command(["bench", *MODEL, "-p", "4", "-n", "2", "-r", "1", "--probe-size", "4"]),
    "plan": Command(["plan", *MODEL, "--svg", "plan.svg"], "plan.svg"),
    "info": Command(["info", *MODEL]),
    "doctor": Command(["doctor", "--report", "report.json"], "report.json", rare=True),
    "serve": Command(["serve", *MODEL, "--host", "s.sock", "-np", "1", "-c", "128", "--slot-save-path", "slots"], "slots/s", kills=True),
    "pull": Command(["pull", "-mu", "URL"], kills=True),
}


def write_checkpoint(folder):
    """A checkpoint whose feed-forward block has weights in FP8, with scales of blocks."""
    folder.mkdir()
    shapes = {
        "embed_tokens": (8, 64), "norm": (64,), "layers.0.input_layernorm": (64,), "layers.0.post_attention_layernorm": (64,),
        "layers.0.self_attn.q_proj": (64, 64), "layers.0.self_attn.k_proj": (32, 64), "layers.0.self_attn.v_proj": (32, 64),
        "layers.0.self_attn.o_proj": (64, 64), "layers.0.mlp.gate_proj": (4096, 64), "layers.0.mlp.up_proj": (4096, 64),
        "layers.0.mlp.down_proj": (64, 4096),
    }
    header, at = {}, 0

    def add(name, dtype, shape, size):
        nonlocal at
        begin, at = at, at + size * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, at]}

    for name, shape in shapes.items():
        add(f"model.{name}.weight", *(("F8_E4M3", shape, 1) if "mlp" in name else ("BF16", shape, 2)))
        if "mlp" in name:
            add(f"model.{name}.weight_scale_inv", "F32", [size // 64 for size in shape], 4)
    text = json.dumps(header).encode()
    weights = len(text).to_bytes(8, "little") + text + bytes(i % 64 for i in range(at))
    (folder / "model.safetensors").write_bytes(weights)
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 4096, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 8, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "relu",
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    tokenizer = {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def write_adapter(path, n_embd, n_ff):
    """A LoRA adapter of rank 1 for one matrix, all zeros, in GGUF."""
    text = lambda value: len(value).to_bytes(8, "little") + value.encode()
    keys = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    out = b"GGUF" + (3).to_bytes(4, "little") + (2).to_bytes(8, "little") + (len(keys) + 1).to_bytes(8, "little")
    out += b"".join(text(key) + (8).to_bytes(4, "little") + text(value) for key, value in keys.items())
    out += text("adapter.lora.alpha") + (6).to_bytes(4, "little") + b"\0\0\x80\x3f"
    at = 0
    for suffix, shape in (("lora_a", (n_embd, 1)), ("lora_b", (1, n_ff))):
        out += text(f"blk.0.ffn_up.weight.{suffix}") + (2).to_bytes(4, "little")
        out += b"".join(size.to_bytes(8, "little") for size in shape) + (0).to_bytes(4, "little") + at.to_bytes(8, "little")
        at += (4 * max(shape) + 31) // 32 * 32
    out += bytes(-len(out) % 32)
    path.write_bytes(out + bytes(at))


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Hub(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        """Clients that fail or are killed leave their connections."""


class Place:
    """A folder with the inputs, in which one command at a time runs."""

    def __init__(self, program, folder, library):
        self.program, self.folder, self.library = program, folder, folder / "fault.so"
        folder.mkdir()
        shutil.copy(library, self.library)
        write_checkpoint(folder / "hf")
        unpack(BUILT_IN, folder).replace(folder / "model.gguf")
        (folder / "text").write_text("One day a cat saw a big red ball. " * 20)
        (folder / "long").write_text("One day a cat saw a big red ball. " * 200)
        shown = subprocess.run([program, "info", *MODEL, "--json"], cwd=folder, capture_output=True, text=True, check=True)
        found = json.loads(shown.stdout)
        up = next(tensor for tensor in found["tensors"] if tensor["name"] == "blk.0.ffn_up.weight")
        write_adapter(folder / "lora.gguf", *up["shape"])
        made = ["bench", "--synthetic", "256x2x512x4/2*8/2:Q8_0:silu", "-p", "1", "-n", "1", "-r", "1", "--probe-size", "4"]
        ended = self.start(made + ["--write", "experts.gguf"]).communicate()
        assert (folder / "experts.gguf").exists(), ended[1]
        handler = lambda *args: Quiet(*args, directory=str(folder))
        self.hub = Hub(("127.0.0.1", 0), handler)
        threading.Thread(target=self.hub.serve_forever, daemon=True).start()

    def start(self, words, **variables):
        words = [f"http://127.0.0.1:{self.hub.server_port}/model.gguf" if word == "URL" else word for word in words]
        environment = {"HOME": str(self.folder), "PATH": os.environ["PATH"], "THERMOCLINE_ARG_BACKEND": "cpu", **variables}
        return subprocess.Popen(
            [self.program, *words], cwd=self.folder, env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
        )

    def faulty(self, words, **variables):
        return self.start(words, LD_PRELOAD=str(self.library), FAULT_FOLDER=str(self.folder), **variables)

    def clean(self):
        for path in self.folder.iterdir():
            if path.name in INPUTS:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        (self.folder / "slots").mkdir()

    def parts(self):
        return [str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.name.endswith(PARTS)]

    def outputs(self, command):
        """Bytes of each output, or None; empty if a command has no output or writes another one each time."""
        paths = [self.folder / name for name in command.outputs]
        return [path.read_bytes() if path.exists() else None for path in paths]

    def finish(self, name, running, limit=120):
        """Drives a running command to its end. Returns its messages and what is wrong with its answers.

        Raises subprocess.TimeoutExpired if it hangs."""
        wrong = ""
        if name == "serve":
            try:
                wrong = self.talk(running)
            except TimeoutError as stuck:
                raise subprocess.TimeoutExpired(str(stuck), limit) from stuck
            running.terminate()
        message = running.communicate(COMMANDS[name].stdin, timeout=limit)[1]
        return message, wrong

    def talk(self, running):
        """A completion, and a slot saved and restored. Returns what is wrong with the answers."""
        begin = time.monotonic()
        body = {"prompt": "Once", "n_predict": 4, "temperature": 0}
        slot = {"filename": "s"}
        for path, request in (("/completion", body), ("/slots/0?action=save", slot), ("/slots/0?action=restore", slot), ("/completion", body)):
            while True:
                if running.poll() is not None:
                    return ""
                answer = self.ask(path, request)
                if answer and not (answer.startswith("HTTP/1.1 503") and "oading" in answer):
                    break
                if time.monotonic() - begin > 60:
                    raise TimeoutError(f"{path} is not answered: {answer}")
                time.sleep(0.005)
            head, _, text = answer.partition("\r\n\r\n")
            if not head.startswith("HTTP/1.1 200") and '"error"' not in text:
                return f"{path} is answered by {answer[:300]}"
        return ""

    def ask(self, path, request):
        """The answer to a request; empty if there is none."""
        data = json.dumps(request).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        with socket.socket(socket.AF_UNIX) as server:
            server.settimeout(60)
            try:
                # A path of a socket has at most 107 bytes.
                server.connect(os.path.relpath(self.folder / "s.sock"))
                server.sendall(head.encode() + data)
                pieces = []
                while piece := server.recv(65536):
                    pieces.append(piece)
            except TimeoutError:
                raise
            except OSError:
                return ""
        return b"".join(pieces).decode(errors="replace")
