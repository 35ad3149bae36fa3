"""Logits of llama.cpp for given token ids, in F32 where llama.cpp allows it.

    PYTHON llama_cpp_logits.py MODEL IDS.json OUT.npy [N_UBATCH [CACHE_TYPE]]

IDS.json is a list of token ids, OUT.npy becomes `[n_tokens, n_vocab]` F32. PYTHON has llama-cpp-python
(llama_cpp_venv.py makes such an environment), or finds its `llama_cpp` folder on PYTHONPATH and a built library by
LLAMA_CPP_LIB_PATH.

The KV cache is F32 and flash attention off, which llama.cpp needs for a quantised CACHE_TYPE such as q4_0; weights are
not repacked. llama.cpp rounds activations to the type of
the weights they meet (F16, or Q8 blocks for quantised ones), so only a file of F32 weights is computed in F32.
"""
import ctypes
import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np

GGML_TYPE_F32 = 0
RANK = llama_cpp.LLAMA_POOLING_TYPE_RANK
CACHE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}


@llama_cpp.llama_log_callback
def only_errors(level, text, _):
    if level == 4:
        sys.stderr.write(text.decode(errors="replace"))


def load(path):
    llama_cpp.llama_log_set(only_errors, ctypes.c_void_p(0))
    settings = llama_cpp.llama_model_default_params()
    settings.use_extra_bufts = False
    settings.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), settings)
    if not model:
        raise SystemExit(f"llama.cpp cannot load {path}")
    return model


def logits_of(model, ids, n_ctx, n_ubatch, adapters=(), **overrides):
    """Logits `[len(ids), n_vocab]` of a new sequence, fed `n_ubatch` tokens at a time. `adapters` are pairs of a LoRA
    file and its scale, `overrides` fields of llama.cpp's context parameters."""
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = n_ctx
    settings.n_batch = settings.n_ubatch = n_ubatch
    settings.type_k = settings.type_v = GGML_TYPE_F32
    settings.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    settings.n_threads = settings.n_threads_batch = 1
    for name, value in overrides.items():
        setattr(settings, name, value)
    context = llama_cpp.llama_init_from_model(model, settings)
    if not context:
        raise SystemExit("llama.cpp cannot make a context")
    if adapters:
        loaded = [llama_cpp.llama_adapter_lora_init(model, str(path).encode()) for path, _ in adapters]
        if not all(loaded):
            raise SystemExit("llama.cpp cannot load an adapter")
        pointers = (llama_cpp.llama_adapter_lora_p_ctypes * len(loaded))(*loaded)
        scales = (ctypes.c_float * len(loaded))(*[scale for _, scale in adapters])
        llama_cpp.llama_set_adapters_lora(context, pointers, len(loaded), scales)
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(n_ubatch, 0, 1)
    rows = []
    for begin in range(0, len(ids), n_ubatch):
        part = ids[begin : begin + n_ubatch]
        batch.n_tokens = len(part)
        for i, token in enumerate(part):
            batch.token[i], batch.pos[i] = token, begin + i
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, 1
        if llama_cpp.llama_decode(context, batch) != 0:
            raise SystemExit("llama_decode failed")
        for i in range(len(part)):
            rows.append(np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), (n_vocab,)).copy())
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    return np.stack(rows)


def states_of(model, ids, n_ctx, pooling=llama_cpp.LLAMA_POOLING_TYPE_NONE):
    """Final hidden states `[len(ids), n_embd]` of a text, or with another pooling its embedding `[n]`."""
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = max(n_ctx, len(ids))
    settings.type_k = settings.type_v = GGML_TYPE_F32
    settings.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    settings.n_threads = settings.n_threads_batch = 1
    settings.embeddings, settings.pooling_type = True, pooling
    context = llama_cpp.llama_init_from_model(model, settings)
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i] = token, i
        batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, 1
    if not context or llama_cpp.llama_decode(context, batch) != 0:
        raise SystemExit("llama.cpp cannot compute the states")
    if pooling == llama_cpp.LLAMA_POOLING_TYPE_NONE:
        n = llama_cpp.llama_model_n_embd(model)
        rows = [llama_cpp.llama_get_embeddings_ith(context, i) for i in range(len(ids))]
        values = np.stack([np.ctypeslib.as_array(row, (n,)).copy() for row in rows])
    else:
        n = llama_cpp.llama_model_n_embd_out(model)
        n = llama_cpp.llama_model_n_cls_out(model) if pooling == llama_cpp.LLAMA_POOLING_TYPE_RANK else n
        values = np.ctypeslib.as_array(llama_cpp.llama_get_embeddings_seq(context, 0), (n,)).copy()
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    return values


def cache_of(name):
    """Context parameters for a KV cache of this type."""
    if name == "f32":
        return {}
    kind = CACHE_TYPES[name]
    return {"type_k": kind, "type_v": kind, "flash_attn_type": llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED}


def main(model, ids, out, n_ubatch=None, cache_type="f32"):
    ids = json.loads(Path(ids).read_text())
    n_ubatch = int(n_ubatch or len(ids))
    np.save(out, logits_of(load(model), ids, max(256, len(ids)), n_ubatch, **cache_of(cache_type)))


if __name__ == "__main__":
    main(*sys.argv[1:])
