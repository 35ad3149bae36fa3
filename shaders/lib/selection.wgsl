// In place of a window: the part of a token's list that it attends to, at least one entry. `n_listed` is the
// number of entries of a list; those after the last one in use have the highest number.
fn first_seen(pos: u32, n_listed: u32) -> u32 { return 0u; }

fn end_seen(t: u32, pos: u32, n_listed: u32) -> u32 {
    var first = 1u;
    var end = n_listed;
    while (first < end) {
        let middle = (first + end) / 2u;
        if (listed(t * n_listed + middle) == 0xffffffffu) { end = middle; } else { first = middle + 1u; }
    }
    return first;
}
