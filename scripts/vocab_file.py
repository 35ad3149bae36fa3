"""Vocabulary files: GGUF without tensors, whose metadata can be changed."""
import struct

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
U8, U32, I32, F32, BOOL, STRING, ARRAY = 0, 4, 5, 6, 7, 8, 9


def string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


class VocabFile:
    """Keys with their type and their value's bytes, in the file's order."""

    def __init__(self, path):
        data = path.read_bytes()
        magic, version, n_tensors, n_keys = struct.unpack_from("<4sIQQ", data)
        if magic != b"GGUF" or n_tensors != 0:
            raise SystemExit(f"{path} is not a GGUF file with only a vocabulary")
        self.version, self.values, at = version, {}, 24
        for _ in range(n_keys):
            key_end = self._skip(data, at, STRING)
            kind, = struct.unpack_from("<I", data, key_end)
            end = self._skip(data, key_end + 4, kind)
            self.values[data[at + 8:key_end].decode()] = (kind, data[key_end + 4:end])
            at = end

    @classmethod
    def _skip(cls, data, at, kind):
        if kind == STRING:
            return at + 8 + struct.unpack_from("<Q", data, at)[0]
        if kind != ARRAY:
            return at + SIZES[kind]
        item, n = struct.unpack_from("<IQ", data, at)
        at += 12
        if item in SIZES:
            return at + n * SIZES[item]
        for _ in range(n):
            at = cls._skip(data, at, item)
        return at

    def strings(self, key):
        """An array of strings, as bytes."""
        data, found, at = self.values[key][1], [], 12
        while at < len(data):
            end = self._skip(data, at, STRING)
            found.append(data[at + 8:end])
            at = end
        return found

    def numbers(self, key, code):
        """An array of numbers; `code` is struct's letter."""
        data = self.values[key][1][12:]
        return list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))

    def text(self, key):
        return self.values[key][1][8:].decode()

    def set(self, key, kind, value):
        if kind == STRING:
            self.values[key] = (kind, string(value))
        else:
            code = {U8: "B", U32: "I", I32: "i", F32: "f", BOOL: "?"}[kind]
            self.values[key] = (kind, struct.pack(f"<{code}", value))

    def set_array(self, key, kind, values):
        if kind == STRING:
            data = b"".join(map(string, values))
        else:
            code = {U8: "B", I32: "i", F32: "f"}[kind]
            data = struct.pack(f"<{len(values)}{code}", *values)
        self.values[key] = (ARRAY, struct.pack("<IQ", kind, len(values)) + data)

    def write(self, path):
        parts = [struct.pack("<4sIQQ", b"GGUF", self.version, 0, len(self.values))]
        for key, (kind, value) in self.values.items():
            parts += [string(key), struct.pack("<I", kind), value]
        path.write_bytes(b"".join(parts) + bytes(32))
        return path


def byte_alphabet():
    """GPT-2's printable character for each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = iter(range(0x100, 0x200))
    return [chr(b if b in plain else next(rest)) for b in range(256)]


def add_byte_pairs(base):
    """Gives `base` a token for every byte and every pair of bytes, so that ids show nearly every split."""
    letters = byte_alphabet()
    pairs = [(a, b) for a in letters for b in letters]
    tokens = letters + [a + b for a, b in pairs]
    base.set_array("tokenizer.ggml.tokens", STRING, tokens)
    base.set_array("tokenizer.ggml.token_type", I32, [1] * len(tokens))
    base.set_array("tokenizer.ggml.merges", STRING, [f"{a} {b}" for a, b in pairs])
    for role in ("bos", "eos", "unknown"):
        base.values.pop(f"tokenizer.ggml.{role}_token_id", None)
    base.values.pop("tokenizer.ggml.scores", None)
    return base
