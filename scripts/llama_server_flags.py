"""Runs `thermocline serve` with llama-server's flags. scripts/check_llama_server gives llama.cpp's tests this program.

Flags that `serve` refuses because they have no equivalent here are dropped. Where a default differs, llama-server's is set.

    LLAMA_SERVER_PROGRAM=thermocline LLAMA_SERVER_MODELS=models.json llama_server_flags.py FLAGS OF llama-server
"""

import json
import os
import sys

# Flags without an effect here, with the number of their values: models come from LLAMA_SERVER_MODELS, all sequences share
# one KV cache, embeddings need no flag, and cached prefixes have no memory of their own.
DROPPED = {
    "--hf-repo": 1, "--hf-file": 1, "--model-url": 1, "--cache-ram": 1, "--kv-unified": 0, "--embedding": 0,
    "--no-cache-idle-slots": 0, "--backend_sampling": 0,
}
# llama-server's default, which the tests rely on; here, web pages of other origins are refused.
DEFAULTS = {"--cors-origins": "*"}


def translate(flags, models):
    """The flags of `serve`. `models` maps model names to files, and "" to the file for all other names."""
    kept, repository, file, at = [], None, None, 0
    while at < len(flags):
        flag = flags[at]
        values = DROPPED.get(flag)
        if values is None:
            kept.append(flag)
            at += 1
            continue
        if flag == "--hf-repo":
            repository = flags[at + 1]
        elif flag == "--hf-file":
            file = flags[at + 1]
        at += 1 + values
    name = f"{repository}/{file}" if file else repository
    if "--model" not in kept:
        kept += ["--model", models.get(name, models[""])]
    for flag, value in DEFAULTS.items():
        if flag not in kept:
            kept += [flag, value]
    return kept


def main():
    program = os.environ["LLAMA_SERVER_PROGRAM"]
    with open(os.environ["LLAMA_SERVER_MODELS"]) as file:
        models = json.load(file)
    os.execv(program, [program, "serve", *translate(sys.argv[1:], models)])


if __name__ == "__main__":
    main()
