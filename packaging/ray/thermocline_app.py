"""Ray Serve application: replicas of `thermocline serve` behind one address.

    pip install "ray[serve]"
    cd packaging/ray
    serve run thermocline_app:build replicas=2 args="-m /srv/models/model.gguf -c 8192"

Every path of `thermocline serve` works, streams included. The requests of a conversation go to the same replica, which
has its prefix in the KV cache: the key is the header `x-session-id`, the field `session_id`, `prompt_cache_key` or
`user`, or else the beginning of the prompt. When a replica's program ends, Ray starts another; requests that had no
answer yet go to the other replicas. The metrics of all replicas are among Ray's, with the tag `replica`.
"""

import asyncio
import ctypes
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading

import aiohttp
from ray import serve
from ray.exceptions import RayActorError
from ray.serve import metrics
from ray.serve.config import RequestRouterConfig
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse

ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
# Headers about one connection, which a proxy does not hand on.
HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"}
# Characters of a prompt that make its key: long enough for a system prompt with a first question.
KEY_LENGTH = 2048
ATTEMPTS = 3


def end_with_parent():
    """The child gets SIGTERM when the replica's process is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def session_key(headers, body):
    """What the requests of one conversation have in common; `None` if a request has nothing of it."""
    if "x-session-id" in headers:
        return headers["x-session-id"]
    try:
        fields = json.loads(body)
    except ValueError:
        return None
    if not isinstance(fields, dict):
        return None
    for name in ["session_id", "prompt_cache_key", "user"]:
        if isinstance(fields.get(name), str):
            return fields[name]
    start = fields.get("prompt", fields.get("input"))
    if isinstance(fields.get("messages"), list):
        # Up to the first question, which later requests of the conversation repeat.
        roles = [message.get("role") if isinstance(message, dict) else None for message in fields["messages"]]
        first = roles.index("user") + 1 if "user" in roles else 1
        start = [fields.get("system"), fields["messages"][:first]]
    if start is None:
        return None
    return hashlib.sha256(json.dumps(start)[:KEY_LENGTH].encode()).hexdigest()


@serve.deployment(
    request_router_config=RequestRouterConfig(request_router_class=ROUTER),
    # The program itself queues requests and refuses what exceeds --max-queued.
    max_ongoing_requests=1000,
    health_check_period_s=5,
    health_check_timeout_s=10,
    graceful_shutdown_timeout_s=20,
)
class Engine:
    """A process of `thermocline serve` on a UNIX socket."""

    def __init__(self, program, args):
        self.folder = tempfile.TemporaryDirectory(prefix="thermocline-")
        self.socket = os.path.join(self.folder.name, "serve.sock")
        command = [program, "serve", "--metrics", *args, "--host", self.socket]
        self.process = subprocess.Popen(command, preexec_fn=end_with_parent)
        self.stopping = False
        self.session = None
        self.seen = {}
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        """Ends the replica with its program, so that Ray starts another at once."""
        status = self.process.wait()
        if not self.stopping:
            print(f"thermocline ended with status {status}", file=sys.stderr, flush=True)
            os._exit(1)

    def client(self):
        if self.session is None:
            connector = aiohttp.UnixConnector(self.socket, limit=0)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
            self.session = aiohttp.ClientSession("http://localhost", connector=connector, timeout=timeout)
        return self.session

    async def check_health(self):
        """Called by Ray. While the model loads, requests wait in `answer`."""
        if self.process.poll() is not None:
            raise RuntimeError("the program has ended")
        if os.path.exists(self.socket):
            async with self.client().get("/health") as answer:
                if answer.status not in (200, 503):
                    raise RuntimeError(f"/health answers {answer.status}")
            await self.report_metrics()

    async def report_metrics(self):
        async with self.client().get("/metrics") as answer:
            text = await answer.text()
        kinds = {}
        for line in text.splitlines():
            words = line.split()
            if line.startswith("# TYPE"):
                kinds[words[2]] = words[3]
            elif len(words) == 2 and kinds.get(words[0]) in ("counter", "gauge"):
                self.report(words[0].replace(":", "_"), kinds[words[0]], float(words[1]))

    def report(self, name, kind, value):
        if name not in self.seen:
            make = metrics.Counter if kind == "counter" else metrics.Gauge
            self.seen[name] = (make(name, description=f"{name} of thermocline serve"), 0.0)
        metric, before = self.seen[name]
        if kind == "gauge":
            metric.set(value)
        elif value > before:
            metric.inc(value - before)
        self.seen[name] = (metric, value)

    async def ready(self):
        while True:
            if os.path.exists(self.socket):
                async with self.client().get("/health") as answer:
                    if answer.status != 503:
                        return
            await asyncio.sleep(0.2)

    async def answer(self, method, target, headers, body):
        """Yields status and headers, then the bytes of the answer as they come."""
        await self.ready()
        async with self.client().request(method, target, headers=headers, data=body) as answer:
            yield answer.status, [(k, v) for k, v in answer.headers.items() if k.lower() not in HOP], self.process.pid
            async for chunk in answer.content.iter_any():
                yield chunk

    def __del__(self):
        self.stopping = True
        process = getattr(self, "process", None)
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()


@serve.deployment(max_ongoing_requests=10_000)
class Front:
    """Hands each request to the replica of its conversation."""

    def __init__(self, engines):
        self.engines = engines

    async def __call__(self, request: Request):
        body = await request.body()
        headers = {k: v for k, v in request.headers.items() if k not in HOP}
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        key = session_key(headers, body)
        for attempt in range(ATTEMPTS):
            # Another replica, should the first be gone; without a key, any.
            session = {} if key is None else {"session_id": key if attempt == 0 else f"{key}/{attempt}"}
            engines = self.engines.options(stream=True, **session)
            chunks = engines.answer.remote(request.method, target, headers, body)
            try:
                status, answer_headers, pid = await anext(aiter(chunks))
            except (RayActorError, aiohttp.ClientConnectionError, ConnectionError):
                await asyncio.sleep(0.1)
                continue
            response = StreamingResponse(chunks, status)
            for name, value in answer_headers:
                response.headers.append(name, value)
            response.headers["x-thermocline-process"] = str(pid)
            return response
        error = {"message": f"no replica answered in {ATTEMPTS} attempts", "type": "unavailable_error", "code": 503}
        return JSONResponse({"error": error}, 503, {"retry-after": "1"})


def build(given):
    """The application, from `serve run`'s arguments: `replicas`, `program`, `args`, `cpus` (of each replica)."""
    engine = Engine.options(
        num_replicas=int(given.get("replicas", 1)),
        ray_actor_options={"num_cpus": float(given.get("cpus", 1)), "num_gpus": float(given.get("gpus", 0))},
    )
    return Front.bind(engine.bind(given.get("program", "thermocline"), shlex.split(given.get("args", ""))))
