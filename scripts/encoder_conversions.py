"""Tiny random encoders of `transformers` for check_conversion: the states and scores of PyTorch against those that
`thermocline embed` prints for the same text."""
import json
import os
import subprocess

import numpy as np
import torch
import transformers as T
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
TEXTS = os.path.join(HERE, "..", "assets", "reference", "eval.txt")
TEXT = "Once upon a time, Zoë's little DOG ran 42 times!"
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


def embed(binary, path, text, *flags):
    command = [binary, "embed", "-m", path, "-p", text, "--embd-normalize", "-1", "--embd-output-format", "raw",
               "-ctk", "f32", "-ctv", "f32", *flags]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(" ".join(command) + ": " + run.stderr)
    return np.array([[float(x) for x in line.split()] for line in run.stdout.splitlines()])


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
    path = os.path.join(folder, name + ".gguf")
    run = subprocess.run([binary, "convert", hf, "-o", path, "--outtype", "f32", "--force"], capture_output=True, text=True)
    if run.returncode:
        return "FAILED to convert: " + run.stderr.strip().replace("\n", "; ")
    ranks = kind.endswith("Classification")
    ids = tk.encode(*PAIR).ids if ranks else tk.encode(TEXT).ids
    with torch.no_grad():
        out = model(torch.tensor([ids]))
    want = (out.logits if ranks else out.last_hidden_state[0]).float().numpy()
    text = "\t".join(PAIR) if ranks else TEXT
    have = embed(binary, path, text, *([] if ranks else ["--pooling", "none"]))
    if have.shape != want.shape:
        return f"FAILED: {have.shape[0]} tokens, PyTorch has {want.shape[0]}"
    error = float(((have - want) ** 2).sum() / (want**2).sum())
    return f"{'ok' if error < 1e-6 else 'FAILED'}: normalised squared error {error:.1e} over {len(ids)} tokens"
