#!/usr/bin/env python3
"""Compares our token ids with those of llama.cpp, `tokenizers` and `sentencepiece` on random Unicode.

    pip install llama-cpp-python tokenizers sentencepiece protobuf
    cargo build --release && python3 scripts/check_tokenizers.py --vocab DIR

DIR holds llama.cpp's ggml-vocab-*.gguf. Every pre-tokenizer that we know is put into one of these and into a vocabulary
of all pairs of bytes, whose ids show where text is cut. Prints a line per vocabulary and ends with an error where an id differs.
"""
import argparse
import io
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from random_text import texts as random_texts
from vocab_file import BOOL, F32, I32, STRING, U8, U32, VocabFile, of_pairs

ROOT = Path(__file__).resolve().parent.parent
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")


class Check:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.texts = random_texts(random.Random(options.seed), options.texts)
        self.total = self.wrong = 0

    def ours(self, path, texts, special=True, add=True):
        """Ids by this project's `tokenize`."""
        escaped = [t.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r") for t in texts]
        command = [self.options.thermocline, "tokenize", "-m", path, "--stdin", "--lines", "--ids"]
        command += [] if special else ["--no-parse-special"]
        command += [] if add else ["--no-bos"]
        done = subprocess.run(command, input="".join(t + "\n" for t in escaped).encode(), capture_output=True)
        if done.returncode != 0:
            raise SystemExit(f"{path}: {done.stderr.decode()}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    @staticmethod
    def llama(path, texts, special=True):
        """Ids by llama.cpp, in a process of its own: it ends itself where something is wrong."""
        given = json.dumps({"path": str(path), "texts": texts, "special": special})
        done = subprocess.run([sys.executable, __file__, "--peer"], input=given.encode(), capture_output=True)
        if done.returncode != 0:
            raise SystemExit(f"{path}: llama.cpp: {done.stderr.decode()[-2000:]}")
        return json.loads(done.stdout)

    def compare(self, name, texts, ours, theirs):
        wrong = [i for i in range(len(texts)) if ours[i] != theirs[i]]
        print(f"| {name} | {len(texts)} | {len(wrong)} |", flush=True)
        for i in wrong[:self.options.show]:
            print(f"    {ascii(texts[i])}\n    ours   {ours[i]}\n    theirs {theirs[i]}")
        self.total += len(texts)
        self.wrong += len(wrong)

    def against_llama(self, name, path, texts=None, special=True):
        texts = self.texts if texts is None else texts
        self.compare(name, texts, self.ours(path, texts, special), self.llama(path, texts, special))


def peer():
    """The other side of `Check.llama`."""
    from llama_cpp import Llama
    given = json.load(sys.stdin)
    model = Llama(given["path"], vocab_only=True, verbose=False)
    ids = [model.tokenize(text.encode(), add_bos=True, special=given["special"]) for text in given["texts"]]
    json.dump(ids, sys.stdout)


def pre_tokenizers(check):
    """Every name, with the vocabulary of Llama 3 and with all pairs of bytes."""
    bases = {name: VocabFile(check.options.vocab / "ggml-vocab-llama-bpe.gguf") for name in ("llama-bpe", "pairs")}
    of_pairs(bases["pairs"])
    # Roberta's family has a separator, and without one llama.cpp refuses it.
    for base in bases.values():
        base.set("tokenizer.ggml.seperator_token_id", U32, 0)
    bases["llama-bpe"].set("tokenizer.ggml.pre", STRING, "?")
    said = subprocess.run(
        [check.options.thermocline, "tokenize", "-p", "", "-m", bases["llama-bpe"].write(check.folder / "names.gguf")],
        capture_output=True, text=True).stderr
    names = [n.strip() for n in said.split("known are ")[1].splitlines()[0].split(",")]
    for name in [n for n in names if n not in MARKS and n in (check.options.only or names)]:
        for base, file in bases.items():
            file.set("tokenizer.ggml.pre", STRING, name)
            path = file.write(check.folder / "pre.gguf")
            check.against_llama(f"{name}, {base}", path, special=base == "llama-bpe")


MARKS = ("gemma4", "granite-embed-multi-311m", "sarvam-moe")


def marked(check):
    """Pre-tokenizers that merge characters: the llama vocabulary, its merges written out."""
    file = VocabFile(check.options.vocab / "ggml-vocab-llama-spm.gguf")
    tokens = file.strings("tokenizer.ggml.tokens")
    types = file.numbers("tokenizer.ggml.token_type", "i")
    ids = {token: i for i, token in enumerate(tokens)}
    merges = []
    for token, kind in zip(tokens, types):
        text = token.decode(errors="replace")
        if kind == 1 and len(text) > 1 and " " not in text:
            halves = [(text[:i].encode(), text[i:].encode()) for i in range(1, len(text))]
            known = [(a, b) for a, b in halves if a in ids and b in ids]
            merges += [(max(ids[a], ids[b]), ids[token], a + b" " + b) for a, b in known]
    file.set_array("tokenizer.ggml.merges", STRING, [m for *_, m in sorted(merges)])
    for model, name in [("gpt2", name) for name in MARKS] + [("gemma4", "gemma4")]:
        file.set("tokenizer.ggml.model", STRING, model)
        file.set("tokenizer.ggml.pre", STRING, name)
        check.against_llama(f"{name}, model {model}", file.write(check.folder / "marks.gguf"))


def spm(check):
    """`llama` vocabularies: as it is, without prefix, with user-defined tokens, as Phi-3."""
    path = check.options.vocab / "ggml-vocab-llama-spm.gguf"
    for special in (True, False):
        check.against_llama(f"llama-spm, special {special}", path, special=special)
    file = VocabFile(path)
    file.set("tokenizer.ggml.add_space_prefix", BOOL, False)
    check.against_llama("llama-spm, no prefix", file.write(check.folder / "spm.gguf"))
    tokens, types = file.strings("tokenizer.ggml.tokens"), file.numbers("tokenizer.ggml.token_type", "i")
    new = ["\n", "\n\n", "\n\n\n", "  ", "    ", "<|user|>", "<|end|>", "[@BOS@]", "中文", "ab", "🦙", "<table>", "'s",
           "<|endoftext|>"]
    rare = [i for i in range(31000, 32000) if types[i] == 1][:len(new)]
    for i, text in zip(rare, new):
        if text.encode() not in tokens:
            tokens[i] = text.encode()
            types[i] = 3 if text.startswith("<|") else 4
    for i in random.Random(1).sample(range(300, 30000), 500):
        types[i] = 4
    file.set_array("tokenizer.ggml.tokens", STRING, tokens)
    rng = random.Random(2)
    mixed = [t[:3] + rng.choice(new) + t[3:] + rng.choice(new + [" "]) + rng.choice([" ", "\n x", "y"]) for t in check.texts]
    for prefix in (False, True):
        file.set("tokenizer.ggml.add_space_prefix", BOOL, prefix)
        for name in ("gemma", "Phi-3-mini"):
            # Phi-3's tokens swallow white space. Which of two tokens of the same length goes first is not defined in
            # llama.cpp, so none is white space itself.
            blank = {i for i in rare if name != "gemma" and not tokens[i].strip()}
            file.set_array("tokenizer.ggml.token_type", I32, [1 if i in blank else t for i, t in enumerate(types)])
            file.set("general.name", STRING, name)
            path = file.write(check.folder / "spm.gguf")
            check.against_llama(f"user-defined tokens, {name}, prefix {prefix}", path, mixed)
            check.against_llama("the same, not special", path, mixed, special=False)


def t5(check):
    """A unigram vocabulary trained here, with SentencePiece's own normalisation."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    model = io.BytesIO()
    corpus = [line for t in check.texts for line in t.replace("\0", "").splitlines()] * 2
    corpus += [f"{a} {b}" for a, b in zip(ROOT.joinpath("README.md").read_text().split(), corpus)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_writer=model, vocab_size=3000, model_type="unigram", hard_vocab_limit=False,
        character_coverage=0.98, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2, num_threads=2)
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    file = VocabFile(check.options.vocab / "ggml-vocab-llama-spm.gguf")
    for key in [k for k in file.values if k.startswith("tokenizer.")]:
        del file.values[key]
    file.set("tokenizer.ggml.model", STRING, "t5")
    file.set_array("tokenizer.ggml.tokens", STRING, [p.piece for p in proto.pieces])
    file.set_array("tokenizer.ggml.scores", F32, [p.score for p in proto.pieces])
    file.set_array("tokenizer.ggml.token_type", I32, [p.type for p in proto.pieces])
    file.set_array("tokenizer.ggml.precompiled_charsmap", U8, list(proto.normalizer_spec.precompiled_charsmap))
    for prefix in (True, False):
        for merge in (True, False):
            file.set("tokenizer.ggml.add_space_prefix", BOOL, prefix)
            file.set("tokenizer.ggml.remove_extra_whitespaces", BOOL, merge)
            path = file.write(check.folder / "t5.gguf")
            check.against_llama(f"t5, prefix {prefix}, merged spaces {merge}", path)
            if prefix and merge:
                # llama.cpp reads a zero byte as a character, SentencePiece ends there.
                texts = [t for t in check.texts if "\0" not in t]
                check.compare("t5, sentencepiece", texts, check.ours(path, texts, False, False), theirs.encode(texts))


def hugging_face(check):
    """`tokenizers` on the byte-level vocabularies, by the models' own patterns."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    # Under (?i), 's also matches an old long s, which llama.cpp and so we do not take for one.
    texts = [t.replace("ſ", "") for t in check.texts]
    for name, pattern in [("gpt-2", None), ("llama-bpe", LLAMA3), ("qwen2", QWEN2)]:
        path = check.options.vocab / f"ggml-vocab-{name}.gguf"
        file = VocabFile(path)
        tokens = {t.decode(): i for i, t in enumerate(file.strings("tokenizer.ggml.tokens"))}
        merges = [tuple(m.decode().split(" ")) for m in file.strings("tokenizer.ggml.merges")]
        theirs = Tokenizer(models.BPE(vocab=tokens, merges=merges, ignore_merges=name == "llama-bpe"))
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
        split = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
        theirs.pre_tokenizer = pre_tokenizers.Sequence([*split, bytes_])
        ids = [e.ids for e in theirs.encode_batch(texts)]
        check.compare(f"{name}, tokenizers", texts, check.ours(path, texts, False, False), ids)


def sentence_piece(check):
    """`sentencepiece` on the llama vocabulary."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    path = check.options.vocab / "ggml-vocab-llama-spm.gguf"
    file = VocabFile(path)
    proto = sentencepiece_model_pb2.ModelProto()
    rows = zip(file.strings("tokenizer.ggml.tokens"), file.numbers("tokenizer.ggml.scores", "f"),
               file.numbers("tokenizer.ggml.token_type", "i"))
    for token, score, kind in rows:
        proto.pieces.add(piece=token.decode(), score=score, type=kind)
    proto.trainer_spec.model_type = 2
    proto.trainer_spec.byte_fallback = True
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = True
    proto.normalizer_spec.remove_extra_whitespaces = False
    theirs = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    texts = [t for t in check.texts if "\0" not in t]
    check.compare("llama-spm, sentencepiece", texts, check.ours(path, texts, False, False), theirs.encode(texts))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=Path, default=ROOT.parent / "shared/vocab", help="folder of ggml-vocab-*.gguf")
    parser.add_argument("--thermocline", type=Path, default=ROOT / "target/release/thermocline")
    parser.add_argument("--texts", type=int, default=1000, help="random texts for each vocabulary")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=1, help="differences shown of each vocabulary")
    parser.add_argument("--only", nargs="*", help="of the pre-tokenizers only these")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        return peer()
    with tempfile.TemporaryDirectory() as folder:
        check = Check(options, Path(folder))
        print("| vocabulary | texts | different |\n|---|---:|---:|")
        for part in (hugging_face, sentence_piece, spm, t5, marked, pre_tokenizers):
            part(check)
    print(f"{check.total} comparisons, {check.wrong} differ")
    sys.exit(check.wrong > 0)


if __name__ == "__main__":
    main()
