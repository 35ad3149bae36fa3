"""Random checkpoints of a small Llama whose matrices are quantised: FP8, packed integers, GPTQ."""
import json

import torch
from safetensors.torch import save_file

from own_code_models import SIZES, llama_ends, minicpm

GROUP = 16


def fp8(weight, scale):
    return (weight / scale).clamp(-448, 448).to(torch.float8_e4m3fn)


def block(name, weight):
    """Blocks of 24 by 32, of which the last ones are smaller."""
    rows, cols = weight.shape
    scale = torch.rand((rows + 23) // 24, (cols + 31) // 32) * 0.01 + 0.002
    whole = scale.repeat_interleave(24, 0)[:rows].repeat_interleave(32, 1)[:, :cols]
    return {name: fp8(weight, whole), name + "_scale_inv": scale, name + "_activation_scale": torch.ones(1)}


def tensor(name, weight):
    scale = (weight.abs().max() / 448).to(torch.bfloat16)
    return {name: fp8(weight, scale.float()), name + "_scale_inv": scale}


def channel(name, weight):
    scale = weight.abs().amax(1, keepdim=True) / 448
    return {name: fp8(weight, scale), name + "_scale": scale}


def pack(codes, bits):
    """Codes `[rows, cols]` as 32-bit words along rows, lowest bits first."""
    per = 32 // bits
    codes = torch.nn.functional.pad(codes, (0, -codes.shape[1] % per)).to(torch.int64)
    words = (codes.reshape(codes.shape[0], -1, per) << (bits * torch.arange(per))).sum(-1)
    return (words - (words >> 31 << 32)).to(torch.int32)


def packed(name, weight, zeros=False):
    rows, cols = weight.shape
    codes, scale = torch.randint(0, 16, (rows, cols)), torch.rand(rows, cols // GROUP).to(torch.bfloat16)
    found = {name + "_packed": pack(codes, 4), name + "_scale": scale, name + "_shape": torch.tensor([rows, cols])}
    if zeros:
        found[name + "_zero_point"] = pack(torch.randint(0, 16, (cols // GROUP, rows)), 4).T.contiguous()
    return found


def gptq(name, weight):
    rows, cols = weight.shape
    module = name.removesuffix("weight")
    return {module + "qweight": pack(torch.randint(0, 16, (rows, cols)), 4).T.contiguous(),
            module + "qzeros": pack(torch.randint(0, 15, (cols // GROUP, rows)), 4),
            module + "scales": torch.rand(cols // GROUP, rows).to(torch.float16),
            module + "g_idx": torch.randint(0, cols // GROUP, (cols,), dtype=torch.int32)}


def compressed(format, **weights):
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": {"weights": weights}}}


FLOATS = dict(num_bits=8, type="float", strategy="channel")
INTEGERS = dict(num_bits=4, type="int", strategy="group", group_size=GROUP)
MODELS = {
    "fp8-block": (block, {"quant_method": "fp8", "weight_block_size": [24, 32]}),
    "fp8-tensor": (tensor, {"quant_method": "fp8", "activation_scheme": "static"}),
    "fp8-channel": (channel, compressed("float-quantized", **FLOATS)),
    "int4-packed": (packed, compressed("pack-quantized", **INTEGERS)),
    "int4-packed-zero": (lambda name, weight: packed(name, weight, True), compressed("pack-quantized", **INTEGERS)),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True}),
}


def write(name, folder):
    """Writes the checkpoint to a folder."""
    quantise, settings = MODELS[name]
    torch.manual_seed(1)
    tensors = {}
    # The shapes of a Llama.
    for tensor_name, *shape in list(minicpm())[1:]:
        is_matrix = tensor_name.endswith("_proj.weight")
        value = torch.randn(shape) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.1)
        if len(shape) == 1:
            value += 1.0
        tensors.update(quantise(tensor_name, value) if is_matrix else {tensor_name: value})
    assert all(end[0] in tensors for end in llama_ends())
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    config = {**SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "quantization_config": settings}
    (folder / "config.json").write_text(json.dumps(config))
