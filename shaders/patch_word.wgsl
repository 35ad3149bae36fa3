// Replaces some bits of a word: the last bytes of a copy that does not end at a whole word.

@group(0) @binding(0) var<storage, read_write> words: array<u32>;

struct Params {
    at_words: u32,
    mask: u32,
    bits: u32,
}
var<immediate> p: Params;

@compute @workgroup_size(1)
fn main() {
    words[p.at_words] = (words[p.at_words] & ~p.mask) | (p.bits & p.mask);
}
