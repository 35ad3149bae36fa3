// Selects the top experts of each token and computes their weights; a workgroup per token.

@group(0) @binding(0) var<storage, read> scores: array<f32>;
@group(0) @binding(1) var<storage, read> selection: array<f32>;
@group(0) @binding(2) var<storage, read> groups_of: array<f32>;
// The experts of each token, `[n_tokens, n_used]`.
@group(0) @binding(3) var<storage, read> given: array<f32>;
@group(0) @binding(4) var<storage, read_write> weights: array<f32>;

struct Params {
    at_scores: u32,
    at_selection: u32,
    at_groups: u32,
    at_given: u32,
    at_weights: u32,
    n_tokens: u32,
    n_expert: u32,
    n_used: u32,
    // Number of experts that share a weight. Above 1, there is neither a selection nor groups.
    n_per_chunk: u32,
    // 0: softmax, 1: sigmoid, 2: softmax over the selected experts, 3: root of the softplus.
    scoring: u32,
    renormalise: u32,
    has_selection: u32,
    has_given: u32,
    // 0: experts have no groups.
    n_group: u32,
    n_group_used: u32,
    scale: f32,
}
var<immediate> p: Params;

const LOW: f32 = -3.0e38;
const MIN_WEIGHT_SUM: f32 = 1.0 / 16384.0;

var<workgroup> qualities: array<f32, 64>;
// A bit for each of 4096 experts: whether the token uses it.
var<workgroup> chosen_bits: array<atomic<u32>, 128>;

{{include sum}}
{{include sigmoid}}

// Maps floats to words with the same order.
fn order(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

// What an expert of a token is selected by: its score, or what was written to `weights`.
fn key_of(token: u32, g: u32) -> f32 {
    if (p.n_per_chunk > 1u) { return scores[p.at_scores + token * p.n_expert + g]; }
    return weights[p.at_weights + token * p.n_expert + g];
}

// The rank of an expert by its key; of equal keys, the lower id ranks first.
fn place(token: u32, g: u32) -> u32 {
    let mine = order(key_of(token, g));
    var n = 0u;
    for (var other = 0u; other < p.n_expert; other++) {
        let theirs = order(key_of(token, other));
        n += select(0u, 1u, theirs > mine || (theirs == mine && other < g));
    }
    return n;
}

// The sum of the two largest keys of a group.
fn quality(row: u32, group: u32) -> f32 {
    var first = LOW;
    var second = LOW;
    for (var g = 0u; g < p.n_expert; g++) {
        if (u32(groups_of[p.at_groups + g]) == group) {
            let key = weights[row + g];
            second = max(second, min(first, key));
            first = max(first, key);
        }
    }
    return select(first + second, first, second == LOW);
}

fn is_good(group: u32) -> bool {
    let mine = order(qualities[group]);
    var n = 0u;
    for (var other = 0u; other < p.n_group; other++) {
        let theirs = order(qualities[other]);
        n += select(0u, 1u, theirs > mine || (theirs == mine && other < group));
    }
    return n < p.n_group_used;
}

fn part_of(score: f32, best: f32) -> f32 {
    if (p.scoring == 3u) { return sqrt(softplus_of(score)); }
    return select(exp(score - best), sigmoid_of(score), p.scoring == 1u);
}

@compute @workgroup_size({{ROW}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let token = group.x + group.y * groups.x;
    if (token >= p.n_tokens) {
        return;
    }
    let from_score = p.at_scores + token * p.n_expert;
    let n_weights = p.n_expert / p.n_per_chunk;
    let row = p.at_weights + token * n_weights;
    let alone = p.scoring == 1u || p.scoring == 3u;
    for (var i = t; i < 128u; i += {{ROW}}u) { atomicStore(&chosen_bits[i], 0u); }
    var best = scores[from_score];
    for (var g = 1u; g < p.n_expert; g++) { best = max(best, scores[from_score + g]); }
    var all = 0.0;
    for (var g = t; g < p.n_expert; g += {{ROW}}u) { all += part_of(scores[from_score + g], best); }
    let sum_of_all = sum_all(all, t);
    // Until the experts are selected, `weights` holds the keys by which they are.
    if (p.n_per_chunk == 1u && p.has_given == 0u) {
        for (var g = t; g < p.n_expert; g += {{ROW}}u) {
            let score = scores[from_score + g];
            var key = score;
            if ((p.has_selection != 0u || p.n_group != 0u) && p.scoring != 2u) {
                key = part_of(score, best) / select(sum_of_all, 1.0, alone);
            }
            if (p.has_selection != 0u) { key += selection[p.at_selection + g]; }
            weights[row + g] = key;
        }
    }
    storageBarrier();
    workgroupBarrier();
    if (p.n_group != 0u) {
        for (var i = t; i < p.n_group; i += {{ROW}}u) { qualities[i] = quality(row, i); }
        storageBarrier();
        workgroupBarrier();
        for (var g = t; g < p.n_expert; g += {{ROW}}u) {
            if (!is_good(u32(groups_of[p.at_groups + g]))) { weights[row + g] = LOW; }
        }
        storageBarrier();
    }
    var chosen = 0.0;
    if (p.has_given != 0u) {
        for (var i = t; i < p.n_used; i += {{ROW}}u) {
            let g = min(u32(given[p.at_given + token * p.n_used + i]), p.n_expert - 1u);
            chosen += part_of(scores[from_score + g / p.n_per_chunk], best);
            atomicOr(&chosen_bits[g / 32u], 1u << (g % 32u));
        }
    } else {
        for (var g = t; g < p.n_expert; g += {{ROW}}u) {
            if (place(token, g) < p.n_used) {
                chosen += part_of(scores[from_score + g / p.n_per_chunk], best);
                atomicOr(&chosen_bits[g / 32u], 1u << (g % 32u));
            }
        }
    }
    // All places are known after this sum, so keys may be overwritten.
    let sum_chosen = sum_all(chosen, t);
    storageBarrier();
    workgroupBarrier();
    let total = select(sum_of_all, 1.0, alone);
    var divisor = select(total, max(sum_chosen, total * MIN_WEIGHT_SUM), p.renormalise != 0u);
    if (p.scoring == 2u) { divisor = sum_chosen; }
    for (var c = t; c < n_weights; c += {{ROW}}u) {
        var n_chosen = 0u;
        for (var g = c * p.n_per_chunk; g < (c + 1u) * p.n_per_chunk; g++) {
            n_chosen += (atomicLoad(&chosen_bits[g / 32u]) >> (g % 32u)) & 1u;
        }
        let part = part_of(scores[from_score + c], best);
        weights[row + c] = select(0.0, f32(n_chosen) * (part / divisor * p.scale), n_chosen > 0u);
    }
}
