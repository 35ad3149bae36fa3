"""Tokenizers for the models of check_conversion: trained on a small text, with the pre-tokenizer, the rules for BOS and EOS
and the special tokens of the family.

Patterns of pre-tokenizers come from src/convert/vocab/pre.rs, which recognises them.
"""
import json
import os
import re

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
N_VOCAB = 504
# Spaces, line ends, digits, contractions, scripts, and a special token in the middle.
TEXT = ("Once upon a time, there was a little dog.\n\n  It's 2024's 12345th DON'T — naïve café 日本語 🙂\t\r\n"
        "{special}He'll say: \"x+=1;\"   ...\n\n\n end ")


def patterns():
    with open(os.path.join(HERE, "..", "src", "convert", "vocab", "pre.rs"), encoding="utf-8") as file:
        source = file.read()
    return dict(re.findall(r'const (\w+): &str = r(?:##)?"(.*?)"(?:##)?;\n', source))


PATTERNS = {**patterns(), "HAN_KANA": "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"}


class Scheme:
    """`splits` are names of patterns, or steps. BOS and EOS have the ids 0 and 1, `more` the next ones."""

    def __init__(self, splits, bos, eos, *more, adds_bos=False, whole_words=False, spm=False, prepends=False):
        self.splits, self.specials, self.adds_bos = splits, [bos, eos, *more], adds_bos
        self.whole_words, self.spm, self.prepends = whole_words, spm, prepends

    def steps(self):
        for split in self.splits:
            if split in PATTERNS:
                yield pre_tokenizers.Split(Regex(PATTERNS[split]), "isolated")
            elif split == "bytes":
                yield pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
            elif split == "digit":
                yield pre_tokenizers.Digits(individual_digits=True)
            elif split == "falcon":
                yield from (pre_tokenizers.Punctuation("contiguous"),
                            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
                            pre_tokenizers.Digits(individual_digits=False),
                            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"))
            else:
                yield pre_tokenizers.Split(Regex(split), "isolated")

    def byte_level(self):
        tokenizer = Tokenizer(models.BPE(ignore_merges=self.whole_words))
        steps = list(self.steps())
        if not {"bytes", "falcon"} & set(self.splits):
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        return tokenizer, trainers.BpeTrainer(vocab_size=N_VOCAB, special_tokens=self.specials, initial_alphabet=alphabet,
                                              show_progress=False)

    def sentence_piece(self):
        """BPE on characters, with byte tokens for all others, as SentencePiece's models become in tokenizer.json."""
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token=self.specials[2]))
        steps = [normalizers.Prepend("▁")] * self.prepends + [normalizers.Replace(" ", "▁")]
        tokenizer.normalizer = normalizers.Sequence(steps)
        strip = [decoders.Strip(" ", 1, 0)] if self.prepends else []
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
        return tokenizer, trainers.BpeTrainer(
            vocab_size=N_VOCAB, special_tokens=[*self.specials, *(f"<0x{byte:02X}>" for byte in range(256))],
            limit_alphabet=80, max_token_length=12, show_progress=False)

    def train(self):
        tokenizer, trainer = self.sentence_piece() if self.spm else self.byte_level()
        with open(os.path.join(HERE, "..", "assets", "reference", "eval.txt"), encoding="utf-8") as file:
            # SentencePiece trains on words, tokenizers without a pre-tokenizer on whole lines.
            lines = file.read().split("\n")
        words = [word for line in lines for word in re.findall(r" ?[^ ]+", line)] if self.spm else lines
        tokenizer.train_from_iterator(words, trainer)
        if self.adds_bos:
            bos = self.specials[0]
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, 0)])
        # Byte tokens are ordinary tokens.
        stored = json.loads(tokenizer.to_str())
        stored["added_tokens"] = [token for token in stored["added_tokens"] if not token["content"].startswith("<0x")]
        return Tokenizer.from_str(json.dumps(stored))


LLAMA2 = Scheme([], "<s>", "</s>", "<unk>", adds_bos=True, spm=True, prepends=True)
LLAMA3 = Scheme(["LLAMA3"], "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", adds_bos=True, whole_words=True)
GEMMA = Scheme([], "<bos>", "<eos>", "<unk>", "<start_of_turn>", "<end_of_turn>", adds_bos=True, spm=True)
QWEN = Scheme(["QWEN2"], "<|endoftext|>", "<|im_end|>", "<|im_start|>")
GPT2 = Scheme(["bytes"], "<|begin|>", "<|endoftext|>", "<|pad|>")
STARCODER = Scheme(["digit", "bytes"], "<|start|>", "<|endoftext|>", "<fim_prefix>")
DEEPSEEK = Scheme([r"\p{N}{1,3}", "HAN_KANA", "DEEPSEEK3"], "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>",
                  adds_bos=True)
TEKKEN = Scheme(["TEKKEN"], "<s>", "</s>", "[INST]", adds_bos=True)
OPT = Scheme(["bytes"], "</s>", "<eos>", "<pad>", adds_bos=True)
# The first prefix of a case's name decides.
BY_CASE = (
    ("llama3-rope", LLAMA3), ("llama4", Scheme(["GPT4O"], "<|begin_of_text|>", "<|end_of_text|>", "<|eot|>", adds_bos=True)),
    ("llama", LLAMA2), ("mistral3", TEKKEN), ("mistral4", TEKKEN), ("apertus", TEKKEN), ("mistral", LLAMA2),
    ("mixtral", LLAMA2), ("phi3", LLAMA2), ("minicpm", LLAMA2), ("gemma", GEMMA), ("qwen35", Scheme(
        ["QWEN35"], "<|endoftext|>", "<|im_end|>", "<|im_start|>")), ("qwen", QWEN), ("falcon-7b", Scheme(
            ["falcon"], "<|begin|>", "<|endoftext|>", ">>TITLE<<")), ("falcon-40b", Scheme(
                ["falcon"], "<|begin|>", "<|endoftext|>", ">>TITLE<<")), ("opt", OPT), ("gpt-oss", Scheme(
                    ["GPT4O"], "<|startoftext|>", "<|return|>", "<|message|>")),
    ("gpt", GPT2), ("phi2", GPT2), ("mpt", GPT2), ("mamba", GPT2), ("starcoder", STARCODER), ("granite", STARCODER),
    ("deepseek", DEEPSEEK), ("exaone-moe", Scheme(["EXAONE_MOE"], "[BOS]", "[EOS]", "[|endofturn|]")),
    ("seed_oss", Scheme(["SEED"], "<seed:bos>", "<seed:eos>", "<seed:pad>")),
    ("dbrx", Scheme(["LLAMA3"], "<|begin|>", "<|endoftext|>", "<|im_end|>")),
)


def scheme_of(name):
    return next((scheme for start, scheme in BY_CASE if name.startswith(start)), QWEN)


def write(folder, name):
    """Writes the tokenizer of case `name`; returns it with a text for comparisons."""
    scheme = scheme_of(name)
    tokenizer = scheme.train()
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    bos, eos, *_ = scheme.specials
    settings = {"bos_token": bos, "eos_token": eos, "chat_template": "{{ messages }}"}
    if not scheme.adds_bos:
        settings["add_bos_token"] = False
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump(settings, file)
    return tokenizer, TEXT.format(special=scheme.specials[2])
