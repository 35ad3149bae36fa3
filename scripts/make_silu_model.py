"""Makes a SiLU sibling of the built-in story model, to measure thresholds on: the same weights with another gate function,
trained on for some minutes. It knows its training text by heart rather than English: it is for comparing runs of itself.

    python3 scripts/make_silu_model.py --source MODEL_FOLDER --out FOLDER [--minutes 17]
    thermocline convert FOLDER --outfile silu.gguf

MODEL_FOLDER holds hf/ (the model as Hugging Face has it), calibration.txt and eval.txt. Needs torch, safetensors and tokenizers.
"""
import argparse, json, math, sys, time, shutil, os
import torch, torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

ap = argparse.ArgumentParser()
ap.add_argument("--source", required=True)
ap.add_argument("--out", required=True)
ap.add_argument("--minutes", type=float, default=17)
ap.add_argument("--lr", type=float, default=1e-3)
ap.add_argument("--batch", type=int, default=4)
a = ap.parse_args()
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../assets/train"))
import model as M
torch.manual_seed(1); torch.set_num_threads(1)
class Block(M.Block):
    def forward(self, x, cos, sin):
        B, T, C = x.shape
        hd = C // self.cfg.heads
        n = self.input_layernorm(x)
        q = self.q_proj(n).view(B, T, -1, hd).transpose(1, 2)
        k = self.k_proj(n).view(B, T, -1, hd).transpose(1, 2)
        v = self.v_proj(n).view(B, T, -1, hd).transpose(1, 2)
        q, k = M.rotate(q, cos, sin), M.rotate(k, cos, sin)
        r = self.cfg.heads // self.cfg.kv_heads
        k, v = k.repeat_interleave(r, 1), v.repeat_interleave(r, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(y.transpose(1, 2).reshape(B, T, C))
        n = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(n)) * self.up_proj(n)), None
M.Block = Block
cfg = M.Config(vocab=4096, dim=256, layers=4, heads=4, kv_heads=2, ffn=1280, ctx=512)
net = M.Model(cfg)
w = load_file(f"{a.source}/hf/model.safetensors")
names = {}
for k in w:
    names[k.replace("model.", "", 1).replace("self_attn.", "").replace("mlp.", "")] = k
state = {k: w[v].float() for k, v in names.items()}
missing = net.load_state_dict(state, strict=False)
print(missing, flush=True)
tok = Tokenizer.from_file(f"{a.source}/hf/tokenizer.json")
def ids(path):
    out = []
    for story in open(path).read().split("\n\n"):
        if story.strip():
            t = tok.encode(story.strip(), add_special_tokens=False).ids
            out += [1] + t + [2]
    return torch.tensor(out)
train, val = ids(f"{a.source}/calibration.txt"), ids(f"{a.source}/eval.txt")
print(len(train), len(val), flush=True)
def val_loss():
    net.eval()
    with torch.no_grad():
        n = len(val) // 513
        x = val[: n * 513].view(n, 513)
        return sum(net(x[i:i+4, :-1], x[i:i+4, 1:])[0].item() * len(x[i:i+4]) for i in range(0, n, 4)) / n
opt = torch.optim.AdamW(net.parameters(), lr=a.lr, betas=(0.9, 0.95), weight_decay=0.05)
start = time.time(); step = 0; seen = 0
print("before", val_loss(), flush=True)
start = time.time(); last = start
while True:
    f = (time.time() - start) / (60 * a.minutes)
    if f >= 1: break
    lr = a.lr * min(1, (step + 1) / 30) * (1 if f < 0.3 else max(0.02, (1 - f) / 0.7))
    for g in opt.param_groups: g["lr"] = lr
    at = torch.randint(0, len(train) - 513, (a.batch,))
    x = torch.stack([train[i:i+513] for i in at])
    net.train()
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = net(x[:, :-1], x[:, 1:])
    opt.zero_grad(); loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step(); step += 1; seen += a.batch * 512
    if time.time() - last > 60:
        last = time.time()
        print(f"{last-start:.0f} s step {step} tokens {seen} train {loss.item():.3f} val {val_loss():.3f} lr {lr:.5f}", flush=True)
print("after", val_loss(), seen, flush=True)
os.makedirs(a.out, exist_ok=True)
out = {names[k]: v.half().contiguous() for k, v in net.state_dict().items() if k in names}
save_file(out, f"{a.out}/model.safetensors", metadata={"format": "pt"})
for f in ["generation_config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json"]:
    if os.path.exists(f"{a.source}/hf/{f}"): shutil.copyfile(f"{a.source}/hf/{f}", f"{a.out}/{f}")
c = json.load(open(f"{a.source}/hf/config.json")); c["hidden_act"] = "silu"
json.dump(c, open(f"{a.out}/config.json", "w"), indent=2)
