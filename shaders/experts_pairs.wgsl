// Finds the tokens that use each expert that has rows: pairs of a token and an expert, sorted by
// expert and then by token, at most `n_used` per token. A single workgroup does this.
//
// `pairs` holds, in order: the index of each expert's first pair, and the end of the last expert's
// pairs; a word per pair, with the token in the lower half and the expert in the upper half; the
// pairs of each token, all bits set if missing; and, as scratch, a word per token and expert.

@group(0) @binding(0) var<storage, read> group_weight: array<f32>;
@group(0) @binding(1) var<storage, read> starts: array<u32>;
@group(0) @binding(2) var<storage, read_write> pairs: array<u32>;
@group(0) @binding(3) var<storage, read_write> counts: array<u32>;

struct Params {
    at_group_weight: u32,
    at_starts: u32,
    at_pairs: u32,
    at_counts: u32,
    n_group: u32,
    n_tokens: u32,
    n_used: u32,
    // Word offsets in `pairs`.
    of_pairs: u32,
    of_tokens: u32,
    scratch: u32,
}
var<immediate> p: Params;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) t: u32) {
    for (var token = t; token < p.n_tokens; token += 256u) {
        var n = 0u;
        for (var g = 0u; g < p.n_group; g++) {
            // An expert without rows adds nothing.
            let some = starts[p.at_starts + g] < starts[p.at_starts + g + 1u];
            let weight = group_weight[p.at_group_weight + token * p.n_group + g];
            let used = some && n < p.n_used && weight != 0.0;
            pairs[p.at_pairs + p.scratch + token * p.n_group + g] = select(0u, 1u, used);
            n += select(0u, 1u, used);
        }
        counts[p.at_counts + token] = 0u;
    }
    storageBarrier();
    for (var g = t; g < p.n_group; g += 256u) {
        var n = 0u;
        for (var token = 0u; token < p.n_tokens; token++) { n += pairs[p.at_pairs + p.scratch + token * p.n_group + g]; }
        pairs[p.at_pairs + g + 1u] = n;
    }
    storageBarrier();
    if (t == 0u) {
        var n = 0u;
        pairs[p.at_pairs] = 0u;
        for (var g = 1u; g <= p.n_group; g++) {
            n += pairs[p.at_pairs + g];
            pairs[p.at_pairs + g] = n;
        }
    }
    storageBarrier();
    for (var g = t; g < p.n_group; g += 256u) {
        var pair = pairs[p.at_pairs + g];
        for (var token = 0u; token < p.n_tokens; token++) {
            let at = p.at_pairs + p.scratch + token * p.n_group + g;
            if (pairs[at] != 0u) {
                pairs[p.at_pairs + p.of_pairs + pair] = token | (g << 16u);
                pair += 1u;
                pairs[at] = pair;
            }
        }
    }
    storageBarrier();
    for (var token = t; token < p.n_tokens; token += 256u) {
        var n = 0u;
        for (var g = 0u; g < p.n_group; g++) {
            let pair = pairs[p.at_pairs + p.scratch + token * p.n_group + g];
            if (pair != 0u) {
                pairs[p.at_pairs + p.of_tokens + token * p.n_used + n] = pair - 1u;
                n += 1u;
            }
        }
        for (; n < p.n_used; n++) { pairs[p.at_pairs + p.of_tokens + token * p.n_used + n] = 0xffffffffu; }
    }
}
