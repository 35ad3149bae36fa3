"""A mock of the API that the page uses, for scripts/check_page.

The last user message chooses the answer: `count` streams slowly, `think` reasons first, `fail` ends
with an error in mid-stream, `show NAME` sends a file of the corpus, other texts are repeated.
"""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "src" / "serve" / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
MODEL = "mock-relu-7b"
N_LAYER = 32
N_FF = 11008


def thermocline(cpu_only):
    """The answer to `GET /thermocline`."""
    device = {"index": 1, "name": "CUDA0", "kind": "gpu", "used_bytes": 6 << 30, "peak_bytes": 6 << 30}
    parts = {"scratch": 200 << 20, "frames": 1100 << 20, "cache": 512 << 20}
    parts |= {"neurons": 4 << 30, "hand_offs": 1 << 20, "ends": 240 << 20}
    cpu = {"index": 0, "name": "CPU", "kind": "cpu", "used_bytes": 9 << 30, "peak_bytes": 9 << 30}
    devices = [cpu | {"budget_bytes": None, "parts": None}]
    if not cpu_only:
        devices.append(device | {"budget_bytes": 8 << 30, "parts": parts})
    layers = []
    for i in range(N_LAYER):
        off = 0 if i < 4 or cpu_only else min(N_FF, int(N_FF * (0.2 + 0.03 * i)) // 64 * 64)
        use = [max(0.002, 0.9 * (0.90 - 0.006 * i) ** k) for k in range(32)]
        layer = {"index": i, "home": int(off > 0), "n_neurons": N_FF, "n_experts": None}
        neurons = [N_FF] if cpu_only else [N_FF - off, off]
        layers.append(layer | {"n_experts_used": None, "mixer": "attention", "neurons": neurons, "use": use})
    budgets = []
    for i in range(17):
        share = i / 16
        budgets.append({
            "budget_bytes": i << 30, "tokens_per_second": 6 + 30 * share**1.5,
            "prompt_tokens_per_second": 60 + 800 * share, "layers_on_devices": int(share * N_LAYER),
            "layers_split": 0 if i == 16 else int(share * 20), "used_neurons_off_cpu": share**0.5,
        })
    plan = {
        "tokens_per_second": 17.2, "seconds": 0.058, "seconds_cpu": 0.03, "seconds_devices": 0.02,
        "seconds_hand_offs": 0.008, "layers_on_devices": 28, "used_neurons_off_cpu": 0.81,
        "device_bytes": [0, 6 << 30],
    }
    plans = {"device": "CUDA0", "assumed": False, "current_bytes": 8 << 30, "budgets": budgets}
    return {
        "model": MODEL, "is_sparse": True, "predicts": False, "density": 0.11, "embedding": 0, "head": 1,
        "devices": devices, "layers": layers, "plan": None if cpu_only else plan,
        "plans": None if cpu_only else plans,
    }


def fired(n):
    """The neurons that fired. Hot neurons come first and fire more often."""
    def cell(layer, i):
        value = (i * 7919 + layer * 104729 + n * 1299709) % 1000 / 1000
        chance = 0.9 * 0.97**i
        return min(15, int(15 * chance * (0.5 + value))) if value < chance else 0

    return {"tokens": 1, "layers": ["".join(f"{cell(layer, i):x}" for i in range(128)) for layer in range(N_LAYER)]}


def event(n, cpu_only):
    """One event of `GET /thermocline/events`."""
    density = [0.04 + 0.1 * ((i * 7 + n * 3) % 11) / 11 for i in range(N_LAYER)]
    return {
        "seconds": 0.1, "steps": 2, "prompt_tokens": 0, "generated_tokens": 2, "tokens_per_second": 17.5,
        "prompt_tokens_per_second": 0.0, "density": sum(density) / N_LAYER, "active": 30000.0,
        "active_off_cpu": 0.0 if cpu_only else 24000.0, "neurons": N_LAYER * N_FF * 2.0,
        "cpu_waited": None if cpu_only else 0.21, "devices_waited": None if cpu_only else 0.34,
        "running": 1, "queued": 0, "blocks_used": 40 + n % 5, "blocks": 128,
        "devices": [9 << 30] if cpu_only else [9 << 30, 6 << 30], "layer_density": density,
        "layer_off_cpu": None if cpu_only else [0.8] * N_LAYER, "exchanged": None if cpu_only else 512,
        "fired": fired(n), "fired_refused": None,
    }


def pieces(text):
    return [text[i : i + 4] for i in range(0, len(text), 4)]


def plan_answer(prompt):
    """Seconds per piece of four characters, reasoning, answer, and whether an error ends the answer."""
    if prompt.startswith("count"):
        return 0.03, "", " ".join(str(i) for i in range(1, 400)), False
    if prompt.startswith("think"):
        return 0.005, "First the **units**, then the sum.", "The answer is 42.", False
    if prompt.startswith("fail"):
        return 0.005, "", "This answer ends", True
    if prompt.startswith("show "):
        return 0.0, "", (HERE / "corpus" / Path(prompt[5:].strip()).name).read_text(encoding="utf-8"), False
    return 0.002, "", f"You said: {prompt}", False


class Handler(BaseHTTPRequestHandler):
    """All endpoints. The server object has the options and records the requests."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Logs nothing."""

    def send(self, status, kind, body, extra=()):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.send_header("x-content-type-options", "nosniff")
        for name, value in extra:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_json(self, value, status=200):
        self.send(status, "application/json", json.dumps(value).encode())

    def fail(self, status, message):
        self.send_json({"error": {"message": message, "type": "error", "code": status, "param": None}}, status)

    def do_GET(self):
        path = self.path.split("?")[0]
        if path == "/" or path.startswith("/page/"):
            file = PAGE / (path.removeprefix("/page/") if path != "/" else "index.html")
            if file.suffix not in TYPES or file.parent != PAGE or not file.is_file():
                return self.fail(404, "no such file")
            return self.send(200, TYPES[file.suffix], file.read_bytes(), [("content-security-policy", POLICY)])
        if path == "/v1/models":
            return self.send_json({"object": "list", "data": [{"id": MODEL, "object": "model", "meta": {"n_ctx": 4096}}]})
        if not self.admitted():
            return self.fail(401, "wrong key")
        if path == "/props":
            params = {"temperature": 0.8, "top_k": 40, "seed": 0xFFFFFFFF, "max_tokens": -1}
            return self.send_json({"default_generation_settings": {"params": params}})
        if path == "/thermocline":
            return self.send_json(thermocline(self.server.cpu_only))
        if path == "/thermocline/events":
            return self.stream(self.events())
        return self.fail(404, "no such path")

    def do_POST(self):
        length = int(self.headers.get("content-length", 0))
        body = json.loads(self.rfile.read(length))
        if not self.admitted():
            return self.fail(401, "wrong key")
        if self.path != "/v1/chat/completions":
            return self.fail(404, "no such path")
        self.server.requests.append(body)
        return self.stream(self.answer(body))

    def admitted(self):
        key = self.server.key
        return key is None or self.headers.get("authorization") == f"Bearer {key}"

    def stream(self, lines):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("cache-control", "no-cache")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for line in lines:
                self.wfile.write(f"{line}\n\n".encode())
                self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            self.server.left += 1

    def events(self):
        n = 0
        while not self.server.ending.is_set():
            yield "data: " + json.dumps(event(n, self.server.cpu_only))
            n += 1
            time.sleep(0.15)

    def answer(self, body):
        delay, reasoning, text, fails = plan_answer(body["messages"][-1]["content"].split("\n")[-1])
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}

        def chunk(delta, finish=None, **more):
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return "data: " + json.dumps(head | {"choices": [choice], "usage": None} | more)

        yield chunk({"role": "assistant", "content": None})
        yield chunk({}, prompt_progress={"total": 10, "processed": 5, "cache": 0, "time_ms": 1})
        done = 0
        for name, source in (("reasoning_content", reasoning), ("content", text)):
            for piece in pieces(source):
                done += 1
                timings = {"predicted_n": done, "predicted_per_second": 33.4}
                yield chunk({name: piece}, timings=timings)
                time.sleep(delay)
        if fails:
            yield "data: " + json.dumps({"error": {"message": "the device was lost", "type": "server_error"}})
            return
        yield chunk({}, "stop")
        usage = {"prompt_tokens": 10, "completion_tokens": done, "total_tokens": done + 10}
        usage["prompt_tokens_details"] = {"cached_tokens": 3}
        yield "data: " + json.dumps(head | {"choices": [], "usage": usage})
        yield "data: [DONE]"


def start(key=None, cpu_only=False):
    """Starts a server on a free port, and returns it with its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.key, server.cpu_only, server.requests, server.left = key, cpu_only, [], 0
    server.ending = threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}/"


if __name__ == "__main__":
    print(start()[1], flush=True)
    threading.Event().wait()
