fn listed(i: u32) -> u32 { return extras[p.at_extras + i]; }

// The row of an entry of a list: of its position, unless it is a row itself.
fn row_of(seq: u32, entry: u32) -> u32 {
    let own = entry & 0x7fffffffu;
    if (own != entry) { return own; }
    return cache_row(seq, entry);
}

// The rows of the cache of four places in a token's list; those outside of `first` to `last`
// are replaced by the nearest one inside.
fn rows_of(seq: u32, token: u32, at: u32, first: u32, last: u32) -> vec4<u32> {
    let four = clamp(vec4<u32>(at) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(first), vec4<u32>(last));
    let entries = vec4<u32>(token * p.window) + four;
    return vec4<u32>(
        row_of(seq, listed(entries.x)),
        row_of(seq, listed(entries.y)),
        row_of(seq, listed(entries.z)),
        row_of(seq, listed(entries.w)),
    );
}
