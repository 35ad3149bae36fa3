"""Tiny random encoders of `transformers` for check_conversion: the states and scores of PyTorch against those that
`thermocline embed` prints for the same text."""
import json
import os
import subprocess

import numpy as np
import torch
import transformers as T
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import conversion_tokenizers
import own_encoders

HERE = os.path.dirname(os.path.abspath(__file__))
TEXTS = os.path.join(HERE, "..", "assets", "reference", "eval.txt")
TEXT = "Once upon a time, Zoë's little DOG ran 42 times!"
YES, NO = 504, 505
PAIR = ("a little dog", "The cat sat on the mat.")
SHAPE = dict(vocab_size=400, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
             max_position_embeddings=64, num_labels=1)


def cases():
    """Name, class, settings, tokenizer of each case."""
    yield "bert", "BertModel", SHAPE, word_piece
    yield "bert-ranker", "BertForSequenceClassification", SHAPE, word_piece
    yield "bert-cased", "BertModel", {**SHAPE, "hidden_act": "gelu_new", "type_vocab_size": 1}, cased
    roberta = {**SHAPE, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}
    yield "xlm-roberta", "XLMRobertaModel", roberta, unigram
    yield "xlm-roberta-ranker", "XLMRobertaForSequenceClassification", roberta, unigram
    modern = {**SHAPE, "local_attention": 8, "global_attn_every_n_layers": 3, "num_hidden_layers": 4, "pad_token_id": 0,
              "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": None, "eos_token_id": None}
    yield "modern-bert", "ModernBertModel", modern, word_piece
    yield "modern-bert-ranker", "ModernBertForSequenceClassification", {**modern, "classifier_pooling": "mean"}, word_piece
    gemma = {**SHAPE, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8, "num_hidden_layers": 7,
             "num_key_value_heads": 2, "use_bidirectional_attention": True}
    yield "gemma-embedding", "Gemma3TextModel", gemma, unigram
    yield "camembert", "CamembertModel", roberta, unigram
    yield "distilbert", "DistilBertModel", dict(
        vocab_size=400, dim=64, hidden_dim=96, n_layers=3, n_heads=4, max_position_embeddings=64), word_piece
    yield "nomic-bert", "NomicBertModel", SHAPE, word_piece
    yield "jina-embeddings-v3", "JinaEmbeddingsV3Model", roberta, unigram
    yield "jina-v3-adapters", "JinaEmbeddingsV3Model", roberta, unigram
    byte_level = {**SHAPE, "vocab_size": 512, "max_position_embeddings": 256, "num_key_value_heads": 2, "pad_token_id": 2, "bos_token_id": 0, "eos_token_id": 1}
    yield "eurobert", "EuroBertModel", {**byte_level, "rope_parameters": {
        "rope_type": "default", "rope_theta": 250000.0}}, byte_pairs
    yield "llama-embed", "LlamaModel", byte_level, byte_pairs
    yield "qwen3-embedding", "Qwen3Model", {**byte_level, "head_dim": 16}, pooled_byte_pairs
    yield "qwen3-classifier", "Qwen3ForSequenceClassification", {**byte_level, "head_dim": 16}, byte_pairs
    for tied in (True, False):
        yield f"qwen3-reranker{'-tied' * tied}", "Qwen3ForCausalLM", {
            **byte_level, "head_dim": 16, "tie_word_embeddings": tied}, answers


def save(tk, folder, **settings):
    tk.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
        json.dump(settings, file)
    return tk


def word_piece(folder, lowercase=True):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tk = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tk.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tk.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tk.decoder = decoders.WordPiece()
    tk.train([TEXTS], trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False))
    tk.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)])
    return save(tk, folder, cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]", pad_token="[PAD]")


def cased(folder):
    return word_piece(folder, lowercase=False)


def unigram(folder):
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tk = Tokenizer(models.Unigram())
    tk.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tk.decoder = decoders.Metaspace()
    tk.train([TEXTS], trainers.UnigramTrainer(vocab_size=400, special_tokens=special, unk_token="<unk>", show_progress=False))
    tk.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", "<s> $A </s> </s> $B </s>", [("<s>", 0), ("</s>", 2)])
    return save(tk, folder, bos_token="<s>", cls_token="<s>", eos_token="</s>", sep_token="</s>", unk_token="<unk>",
                pad_token="<pad>")


def byte_pairs(folder):
    """The vocabulary of Qwen; a text gets no special tokens."""
    tk, _ = conversion_tokenizers.write(folder, "qwen3")
    return tk


def answers(folder):
    """As byte_pairs, with tokens for the answers of a ranking model."""
    tk = byte_pairs(folder)
    stored = json.loads(tk.to_str())
    stored["model"]["vocab"].update(yes=YES, no=NO)
    with open(os.path.join(folder, "tokenizer.json"), "w") as file:
        json.dump(stored, file)
    return tk


def rank_prompt(path):
    """The prompt that the file states, with a query and a document."""
    from gguf import GGUFReader
    prompt = GGUFReader(path).fields["tokenizer.chat_template.rerank"].contents()
    return prompt.replace("{query}", PAIR[0]).replace("{document}", PAIR[1])


def pooled_byte_pairs(folder):
    """As byte_pairs, in a folder of Sentence Transformers whose tokenizer appends a token that is not that of the settings."""
    tk = byte_pairs(folder)
    tk.post_processor = processors.TemplateProcessing("$A <|im_start|>", "$A $B <|im_start|>", [("<|im_start|>", 2)])
    tk.save(os.path.join(folder, "tokenizer.json"))
    os.makedirs(os.path.join(folder, "1_Pooling"))
    for path, content in (("modules.json", [{"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]),
                          ("1_Pooling/config.json", {"pooling_mode_lasttoken": True})):
        with open(os.path.join(folder, path), "w") as file:
            json.dump(content, file)
    return tk


def embed(binary, path, text, *flags):
    command = [binary, "embed", "-m", path, "-p", text, "--embd-normalize", "-1", "--embd-output-format", "raw",
               "-ctk", "f32", "-ctv", "f32", *flags]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(" ".join(command) + ": " + run.stderr)
    return np.array([[float(x) for x in line.split()] for line in run.stdout.splitlines()])


def compare(binary, name, folder, want, n_tokens, *flags, text=TEXT, columns=None):
    """Converts the model in `folder`/`name`, and compares its states or scores with `want`; returns a verdict."""
    path = os.path.join(folder, name + ".gguf")
    have = embed(binary, path, text, *flags)[:, :columns]
    if have.shape != want.shape:
        return f"FAILED: {have.shape[0]} tokens, PyTorch has {want.shape[0]}"
    error = float(((have - want) ** 2).sum() / (want**2).sum())
    return f"{'ok' if error < 1e-6 else 'FAILED'}: normalised squared error {error:.1e} over {n_tokens} tokens"


def convert(binary, name, folder):
    """The error of a conversion; empty if there is none."""
    command = [binary, "convert", os.path.join(folder, name), "-o", os.path.join(folder, name + ".gguf"), "--outtype", "f32",
               "--force"]
    run = subprocess.run(command, capture_output=True, text=True)
    return "FAILED to convert: " + run.stderr.strip().replace("\n", "; ") if run.returncode else ""


def check_own(binary, name, folder):
    """A verdict on an encoder whose code is not in `transformers`."""
    hf = os.path.join(folder, name)
    os.makedirs(hf, exist_ok=True)
    ids = word_piece(hf).encode(TEXT).ids
    want = own_encoders.write(name, hf, ids)
    return convert(binary, name, folder) or compare(binary, name, folder, want, len(ids), "--pooling", "none")


def with_adapters(folder):
    """Renames the tensors of Jina Embeddings 3 to those of the older class, with adapters that the file does not have."""
    from safetensors.torch import load_file, save_file
    path = os.path.join(folder, "model.safetensors")
    tensors = {}
    for name, values in load_file(path).items():
        if values.dim() == 2 and "pooler" not in name:
            base = "roberta." + name.removesuffix(".weight") + ".parametrizations.weight."
            tensors[base + "original"] = values
            for part in "AB":
                tensors[f"{base}0.lora_{part}"] = torch.randn(2, 4, 8)
        else:
            tensors["roberta." + name] = values
    save_file(tensors, path, metadata={"format": "pt"})
    path = os.path.join(folder, "config.json")
    stored = json.load(open(path))
    stored.update(architectures=["XLMRobertaModel"], model_type="xlm-roberta", position_embedding_type="rotary",
                  lora_adaptations=["a", "b"], rotary_emb_base=stored.pop("rope_parameters")["rope_theta"])
    json.dump(stored, open(path, "w"))


def check(binary, name, kind, settings, make_tokenizer, folder, randomise):
    """A verdict on one case."""
    model_class = getattr(T, kind, None)
    if model_class is None:
        return "not in transformers " + T.__version__
    config = model_class.config_class(**settings)
    window = settings.get("sliding_window")
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    randomise(model, 1)
    hf = os.path.join(folder, name)
    model.save_pretrained(hf)
    if window:
        # The configuration halves the window of a bidirectional model; published files have the whole one.
        saved = os.path.join(hf, "config.json")
        stored = json.load(open(saved))
        stored["sliding_window"] = window
        json.dump(stored, open(saved, "w"))
    tk = make_tokenizer(hf)
    if name.endswith("adapters"):
        with_adapters(hf)
    if name == "llama-embed":
        saved = os.path.join(hf, "config.json")
        stored = json.load(open(saved))
        json.dump({**stored, "architectures": ["LlamaBidirectionalModel"]}, open(saved, "w"))
    path = os.path.join(folder, name + ".gguf")
    failed = convert(binary, name, folder)
    if failed:
        return failed
    answered = name.startswith("qwen3-reranker")
    ranks = kind.endswith("Classification") or answered
    ids = tk.encode(rank_prompt(path)).ids if answered else tk.encode(*PAIR).ids if ranks else tk.encode(TEXT).ids
    with torch.no_grad():
        # With a mask of zeros, all tokens see each other.
        mask = dict(attention_mask=torch.zeros(1, 1, len(ids), len(ids))) if name == "llama-embed" else {}
        out = model(torch.tensor([ids]), **mask)
    want = (out.logits if ranks else out.last_hidden_state[0]).float().numpy()
    if name == "qwen3-classifier":
        # Qwen 3's score is a probability.
        want = torch.sigmoid(out.logits).float().numpy()
    if answered:
        want = torch.softmax(out.logits[:, -1, [YES, NO]], -1)[:, :1].float().numpy()
    if name == "qwen3-embedding":
        want = want[-1:]
    text = "\t".join(PAIR) if ranks else TEXT
    pooled = ranks or name == "qwen3-embedding"
    columns = 1 if answered or name == "qwen3-classifier" else None
    flags = [] if pooled else ["--pooling", "none"]
    return compare(binary, name, folder, want, len(ids), *flags, text=text, columns=columns)
