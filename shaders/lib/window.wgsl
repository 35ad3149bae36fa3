// The first position that a token at `pos` attends to; `window` as in attention.wgsl.
fn first_seen(pos: u32, window: u32) -> u32 {
    let len = window & 0x7fffffffu;
    if (window != len) { return pos / len * len; }
    return select(0u, pos + 1u - len, len != 0u && pos + 1u > len);
}
