// Selects the top experts of each token and computes their weights; a workgroup per token.

@group(0) @binding(0) var<storage, read> scores: array<f32>;
@group(0) @binding(1) var<storage, read> selection: array<f32>;
@group(0) @binding(2) var<storage, read> groups_of: array<f32>;
@group(0) @binding(3) var<storage, read_write> weights: array<f32>;

struct Params {
    at_scores: u32,
    at_selection: u32,
    at_groups: u32,
    at_weights: u32,
    n_tokens: u32,
    n_expert: u32,
    n_used: u32,
    // 0: softmax, 1: sigmoid, 2: softmax over the selected experts.
    scoring: u32,
    renormalise: u32,
    has_selection: u32,
    // 0: experts have no groups.
    n_group: u32,
    n_group_used: u32,
    scale: f32,
}
var<immediate> p: Params;

const LOW: f32 = -3.0e38;
const MIN_WEIGHT_SUM: f32 = 1.0 / 16384.0;

var<workgroup> qualities: array<f32, 64>;

{{include sum}}
{{include sigmoid}}

// Maps floats to words with the same order.
fn order(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

// The rank of an expert by its key in `weights`; of equal keys, the lower id ranks first.
fn place(row: u32, g: u32) -> u32 {
    let mine = order(weights[row + g]);
    var n = 0u;
    for (var other = 0u; other < p.n_expert; other++) {
        let theirs = order(weights[row + other]);
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
    let row = p.at_weights + token * p.n_expert;
    var best = scores[from_score];
    for (var g = 1u; g < p.n_expert; g++) { best = max(best, scores[from_score + g]); }
    var all = 0.0;
    for (var g = t; g < p.n_expert; g += {{ROW}}u) { all += part_of(scores[from_score + g], best); }
    let sum_of_all = sum_all(all, t);
    // Until the experts are selected, `weights` holds the keys by which they are.
    for (var g = t; g < p.n_expert; g += {{ROW}}u) {
        let score = scores[from_score + g];
        var key = score;
        if ((p.has_selection != 0u || p.n_group != 0u) && p.scoring != 2u) {
            key = part_of(score, best) / select(sum_of_all, 1.0, p.scoring == 1u);
        }
        if (p.has_selection != 0u) { key += selection[p.at_selection + g]; }
        weights[row + g] = key;
    }
    storageBarrier();
    if (p.n_group != 0u) {
        for (var i = t; i < p.n_group; i += {{ROW}}u) { qualities[i] = quality(row, i); }
        storageBarrier();
        workgroupBarrier();
        for (var g = t; g < p.n_expert; g += {{ROW}}u) {
            if (!is_good(u32(groups_of[p.at_groups + g]))) { weights[row + g] = LOW; }
        }
        storageBarrier();
    }
    var used = array<u32, 4>(0u, 0u, 0u, 0u);
    var chosen = 0.0;
    for (var i = 0u; t + i * {{ROW}}u < p.n_expert; i++) {
        let g = t + i * {{ROW}}u;
        if (place(row, g) < p.n_used) {
            chosen += part_of(scores[from_score + g], best);
            used[i / 32u] |= 1u << (i % 32u);
        }
    }
    // All places are known after this sum, so keys may be overwritten.
    let sum_chosen = sum_all(chosen, t);
    storageBarrier();
    let total = select(sum_of_all, 1.0, p.scoring == 1u);
    var divisor = select(total, max(sum_chosen, total * MIN_WEIGHT_SUM), p.renormalise != 0u);
    if (p.scoring == 2u) { divisor = sum_chosen; }
    for (var i = 0u; t + i * {{ROW}}u < p.n_expert; i++) {
        let g = t + i * {{ROW}}u;
        let part = part_of(scores[from_score + g], best);
        let is_used = ((used[i / 32u] >> (i % 32u)) & 1u) == 1u;
        weights[row + g] = select(0.0, part / divisor * p.scale, is_used);
    }
}
