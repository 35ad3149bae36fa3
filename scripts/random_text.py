"""Random texts of all of Unicode, including sequences that often break tokenizers."""
import unicodedata

SPACES = [*map(chr, [9, 10, 11, 12, 13, 32, 0x85, 0xA0, 0x1680, 0x2000, 0x2003, 0x200A, 0x2028, 0x2029, 0x202F,
                     0x205F, 0x3000])]
SHORT = ["'s", "'t", "'re", "'VE", "'m", "'Ll", "'d", "'ſ", "’s", "'", "''s"]
SPECIAL = ["<s>", "</s>", "<unk>", "<|endoftext|>", "<0x0A>", "<|end|>", "<|begin_of_text|>", "▁", "Ġ", "[EMPTY_1]"]
EMOJI = ["🦙", "👩‍🚀", "👨‍👩‍👧", "🇩🇪", "👍🏽", "❤️", "🏴󠁧󠁢󠁥󠁮󠁧󠁿"]
RANGES = [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F), (0x370, 0x3FF), (0x400, 0x52F), (0x531, 0x58F), (0x590, 0x5FF),
          (0x600, 0x6FF), (0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF), (0xE00, 0xE7F), (0xE80, 0xEFF),
          (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F), (0x1780, 0x17FF), (0x1E00, 0x1FFF),
          (0x2000, 0x206F), (0x2070, 0x218F), (0x2190, 0x27BF), (0x2C00, 0x2DFF), (0x3000, 0x303F), (0x3040, 0x30FF),
          (0x3100, 0x318F), (0x3400, 0x3420), (0x4E00, 0x9FFF), (0x9F00, 0x9FFF), (0xA640, 0xA7FF), (0xA9E0, 0xAA7F),
          (0xAB30, 0xABBF), (0xAC00, 0xD7FF), (0xF900, 0xFAFF), (0xFB00, 0xFB4F), (0xFE00, 0xFE6F), (0xFF00, 0xFFEF),
          (0x10400, 0x1044F), (0x1D400, 0x1D7FF), (0x1E900, 0x1E95F), (0x1F300, 0x1FAFF), (0x20000, 0x20020),
          (0xE0000, 0xE007F)]
DIGITS = "0123456789"


def assigned(c):
    return unicodedata.category(c) not in ("Cn", "Cs")


def letters(rng):
    """Up to five characters of one Unicode range."""
    low, high = rng.choice(RANGES)
    found = [chr(rng.randint(low, high)) for _ in range(rng.randint(1, 5))]
    return "".join(filter(assigned, found))


def anything(rng):
    while not assigned(c := chr(rng.randrange(0x110000))):
        pass
    return c


def piece(rng):
    kinds = [
        lambda: "".join(rng.choices("abcdeorstnilSTAXé", k=rng.randint(1, 6))),
        lambda: "".join(rng.choices(DIGITS, k=rng.randint(1, 9))),
        lambda: "".join(rng.choices(DIGITS + "²½٣四Ⅷ१", k=rng.randint(1, 7))),
        lambda: "".join(rng.choices(SPACES, k=rng.randint(1, 4))),
        lambda: rng.choice(" \n\t") * rng.choice([1, 1, 2, 3, 4, 5, 8, 9, 17, 33]),
        lambda: " " * rng.randint(1, 3) + rng.choice(["", "\n", "\r\n", "\n\n"]),
        lambda: "".join(rng.choices("!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~", k=rng.randint(1, 4))),
        lambda: rng.choice(SHORT), lambda: rng.choice(SPECIAL), lambda: rng.choice(EMOJI),
        lambda: "".join(chr(rng.randint(0x300, 0x36F)) for _ in range(rng.randint(1, 3))),
        lambda: chr(rng.choice([*range(0x20), *range(0x7F, 0xA0), 0xAD, 0x200B, 0x200D, 0xFEFF, 0xFFFD])),
        lambda: letters(rng), lambda: letters(rng), lambda: letters(rng), lambda: anything(rng),
        lambda: rng.choice(["中文", "漢字かな", "한국어", "ㄅㄆ", "ไทย", "ລາວ", "မြန်", "。，、", "“”", "～"]),
    ]
    return rng.choice(kinds)()


def texts(rng, n):
    return ["".join(piece(rng) for _ in range(rng.randint(0, 14))) for _ in range(n)]
