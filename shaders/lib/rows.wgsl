// The rows of the cache of four positions from `pos` on, which are in one block; those outside of `first`
// to `last` are replaced by the nearest one inside.
fn rows_of(seq: u32, token: u32, pos: u32, first: u32, last: u32) -> vec4<u32> {
    let four = clamp(vec4<u32>(pos) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(first), vec4<u32>(last));
    return vec4<u32>(cache_row(seq, pos)) + four - vec4<u32>(pos);
}
