"""A virtual environment with llama-cpp-python, built for this processor if missing or on request."""
import os
import platform
import shutil
import signal
import subprocess
import sys
import venv
from pathlib import Path

PACKAGE = "llama-cpp-python"
# GGML_NATIVE enables AMX on processors that have it, whatever GGML_AMX_INT8 says; only these flags disable it.
NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"


def default_folder():
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "thermocline" / "llama-cpp-venv"


def python_of(folder):
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def archs_folder():
    """Where check_llama_archs builds llama.cpp."""
    return default_folder().parent / "llama-archs"


def use_archs_build(folder):
    """Lets child processes use the llama.cpp that check_llama_archs built in `folder`; returns the Python for it."""
    sources, library = sorted(folder.glob("llama_cpp_python-*/vendor/llama.cpp")), folder / "build/bin"
    python = python_of(folder / "venv")
    if not (sources and library.is_dir() and python.exists()):
        raise SystemExit(f"{folder} has no build of llama.cpp: run scripts/check_llama_archs --work {folder} first")
    os.environ.update(PYTHONPATH=str(sources[-1].parent.parent), LLAMA_CPP_LIB_PATH=str(library))
    return python


def has_package(folder):
    result = subprocess.run([python_of(folder), "-c", "import llama_cpp, numpy"], capture_output=True)
    return result.returncode == 0


def build_environment(amx):
    """The environment variables for pip."""
    environment = dict(os.environ, CMAKE_ARGS="-DGGML_NATIVE=ON")
    if not amx:
        environment["CMAKE_ARGS"] += " -DGGML_AMX_TILE=OFF -DGGML_AMX_INT8=OFF"
        for name in ("CFLAGS", "CXXFLAGS"):
            environment[name] = f"{os.environ.get(name, '')} {NO_AMX}".strip()
    return environment


def install(folder, amx=True):
    """Builds the newest release from source; takes minutes."""
    print(f"building {PACKAGE} in {folder}{'' if amx else ', without AMX'}: this takes minutes", file=sys.stderr)
    if not python_of(folder).exists():
        venv.create(folder, with_pip=True)
    command = [python_of(folder), "-m", "pip", "install", "--upgrade", "--force-reinstall", "--no-cache-dir",
               "--no-binary", PACKAGE, PACKAGE]
    result = subprocess.run(command, env=build_environment(amx), stdout=sys.stderr)
    if result.returncode != 0:
        raise SystemExit(f"pip could not build {PACKAGE} (exit {result.returncode}); it needs a C++ compiler and CMake")


def ensure(folder, rebuild):
    """Builds llama.cpp if missing or on `rebuild`; returns its Python, and whether it was built."""
    if rebuild and folder.exists():
        if not (folder / "pyvenv.cfg").exists():
            raise SystemExit(f"{folder} is not a virtual environment: it is left unchanged")
        shutil.rmtree(folder)
    built = not has_package(folder) if python_of(folder).exists() else True
    if built:
        install(folder)
    return python_of(folder), built


def crashed(code):
    """Whether a process ended by a signal that wrong machine code causes."""
    return -code in (signal.SIGSEGV, signal.SIGILL, signal.SIGBUS)


def has_amx():
    if platform.machine() not in ("x86_64", "AMD64") or not Path("/proc/cpuinfo").exists():
        return False
    return "amx_int8" in Path("/proc/cpuinfo").read_text()
