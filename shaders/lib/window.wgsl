// The first position that a token at `pos` attends to; `window` as in attention.wgsl.
fn first_seen(pos: u32, window: u32) -> u32 {
    let len = window & 0x3fffffffu;
    if ((window & 0x40000000u) != 0u) { return pos - min(pos, len); }
    if ((window & 0x80000000u) != 0u) { return pos / len * len; }
    return select(0u, pos + 1u - len, len != 0u && pos + 1u > len);
}

// The end of the positions that token `t` at `pos` attends to.
fn end_seen(t: u32, pos: u32, window: u32) -> u32 {
    if ((window & 0x40000000u) == 0u) { return pos + 1u; }
    let seq = batch[p.at_batch + 4u + p.max_tokens + t];
    return min(pos + 1u + (window & 0x3fffffffu), batch[p.at_batch + 4u + 5u * p.max_tokens + seq]);
}
