"""llama.cpp's llama-server: built from the source in llama-cpp-python, and run as a process."""

import http.client
import os
import socket
import subprocess
import sys
import tarfile
import time
import venv
from pathlib import Path

PACKAGE = "llama-cpp-python"
# Time limit for loading a model, in seconds.
LOAD = 300


def default_folder():
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "thermocline" / "llama-server"


def python_with(folder, packages):
    """The Python of a virtual environment in `folder` with these packages, made if it is missing."""
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        venv.create(folder / "venv", with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


def download_source(folder, python, needed=("",)):
    """Downloads llama.cpp's source, or only the folders needed, from the newest llama-cpp-python on PyPI."""
    command = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", PACKAGE, "--dest", folder / "sdist", PACKAGE]
    # The exit code is ignored: pip fails after the download if it cannot run the package's build
    # tool.
    subprocess.run(command, check=False)
    archives = sorted((folder / "sdist").glob("*.tar.gz"))
    if not archives:
        sys.exit(f"cannot download the source of {PACKAGE} from PyPI")
    source = folder / "source"
    with tarfile.open(archives[-1]) as archive:
        inside = f"{archive.getnames()[0].split('/')[0]}/vendor/llama.cpp/"
        for member in archive.getmembers():
            relative = member.name.removeprefix(inside)
            if member.isfile() and relative != member.name and relative.startswith(tuple(needed)):
                member.name = relative
                archive.extract(member, source, filter="data")
    return source


def build_llama_server(folder, source=None):
    """The program, built for this processor if it is missing."""
    program = folder / "build" / "bin" / "llama-server"
    if program.exists():
        return program
    python = python_with(folder / "build-tools", ["cmake", "ninja"])
    if source is None:
        source = download_source(folder / "whole", python)
    print(f"building llama-server in {folder}: this takes minutes", file=sys.stderr)
    tools = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    flags = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
             "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF"]
    subprocess.run(["cmake", "-G", "Ninja", "-S", source, "-B", folder / "build", *flags], check=True, env=tools, stdout=sys.stderr)
    subprocess.run(["cmake", "--build", folder / "build", "--target", "llama-server"], check=True, env=tools, stdout=sys.stderr)
    return program


class LlamaServer:
    """A llama-server on a free port, until `stop`."""

    def __init__(self, program, *flags):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.host, self.port = probe.getsockname()
        command = [str(program), "--host", self.host, "--port", str(self.port), *map(str, flags)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + LOAD
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise SystemExit(f"{program} ended, or did not answer /health within {LOAD} s")
            time.sleep(0.2)

    def _is_ready(self):
        try:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=5)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(timeout=30)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
