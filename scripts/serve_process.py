"""`thermocline serve` as a process, and a small HTTP client for it."""

import http.client
import json
import os
import re
import signal
import subprocess
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_PROGRAM = ROOT / "target" / "release" / "thermocline"


class Events:
    """The server-sent events of one answer. Closing it early disconnects in the middle of the answer."""

    def __init__(self, connection, response):
        self.connection, self.response = connection, response

    def __iter__(self):
        """The JSON of each event, until the end of the stream."""
        for line in self.response:
            if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                yield json.loads(line[6:])

    def close(self):
        self.response.close()
        self.connection.close()


class ServeProcess:
    """A server on a free port, with the built-in model unless the flags name another."""

    def __init__(self, program, *flags, environment=None):
        # A chat template, because the built-in model has none.
        template = [] if "-m" in flags else ["--chat-template", "chatml"]
        command = [str(program), "serve", "--port", "0", "--metrics", *template, *map(str, flags)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | (environment or {}))
        self.log = []
        address = None
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"ready on http://([^:/]+):(\d+);", line):
                address = found
                break
        if address is None:
            raise SystemExit(f"the server did not start (exit code {self.process.wait()}):\n{''.join(self.log)}")
        self.host, self.port = address[1], int(address[2])
        # Reads the log; otherwise the server would block once the pipe is full.
        threading.Thread(target=self._read_log, daemon=True).start()

    def _read_log(self):
        for line in self.process.stderr:
            self.log.append(line)
            del self.log[:-1000]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    @property
    def pid(self):
        return self.process.pid

    def stop(self, seconds=30):
        """Ends the server with SIGTERM; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=seconds)

    def send(self, method, path, body=None, headers=None, timeout=120):
        """Sends a request; returns the answer's status and JSON (or text)."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        is_json = "json" in (response.getheader("content-type") or "")
        return response.status, json.loads(text) if is_json else text

    def get(self, path):
        return self.send("GET", path)[1]

    def post(self, path, body):
        """The JSON of an answer with status 200."""
        status, answer = self.send("POST", path, body)
        if status != 200:
            raise SystemExit(f"POST {path}: status {status}: {answer}")
        return answer

    def open_stream(self, path, body, timeout=120):
        """The events of an answer with status 200."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        connection.request("POST", path, json.dumps({**body, "stream": True}), {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"POST {path}: status {response.status}: {response.read(500)}")
        return Events(connection, response)

    def metric(self, name):
        found = re.search(rf"^thermocline:{name} (\S+)$", self.get("/metrics"), re.MULTILINE)
        return float(found[1])

    def n_busy(self):
        """Number of slots that process a request."""
        return sum(slot["is_processing"] for slot in self.get("/slots"))

    def anonymous_bytes(self):
        """Resident memory without mapped files (Linux only)."""
        return self._status("RssAnon") << 10

    def n_threads(self):
        return self._status("Threads")

    def n_files(self):
        """Open files and sockets."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def _status(self, name):
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)[1])
