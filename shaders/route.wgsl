// Selects the top experts of each token and computes their weights; a workgroup per token.

@group(0) @binding(0) var<storage, read> scores: array<f32>;
@group(0) @binding(1) var<storage, read_write> weights: array<f32>;

struct Params {
    at_scores: u32,
    at_weights: u32,
    n_tokens: u32,
    n_group: u32,
    n_used: u32,
    // 0: softmax, 1: sigmoid, 2: softmax over the selected experts.
    scoring: u32,
    renormalise: u32,
    scale: f32,
}
var<immediate> p: Params;

{{include sum}}
{{include sigmoid}}

// Maps floats to words with the same order.
fn order(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

// The rank of an expert; of equal scores, the lower id ranks first.
fn place(from_score: u32, g: u32) -> u32 {
    let mine = order(scores[from_score + g]);
    var n = 0u;
    for (var other = 0u; other < p.n_group; other++) {
        let theirs = order(scores[from_score + other]);
        n += select(0u, 1u, theirs > mine || (theirs == mine && other < g));
    }
    return n;
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
    let from_score = p.at_scores + token * p.n_group;
    var best = scores[from_score];
    for (var g = 1u; g < p.n_group; g++) { best = max(best, scores[from_score + g]); }
    var all = 0.0;
    var chosen = 0.0;
    for (var g = t; g < p.n_group; g += {{ROW}}u) {
        let score = scores[from_score + g];
        let part = select(exp(score - best), sigmoid_of(score), p.scoring == 1u);
        all += part;
        if (place(from_score, g) < p.n_used) { chosen += part; }
    }
    let sum_chosen = sum_all(chosen, t);
    let sum_of_all = sum_all(all, t);
    var divisor = sum_chosen;
    if (p.scoring != 2u && p.renormalise == 0u) {
        divisor = select(sum_of_all, 1.0, p.scoring == 1u);
    }
    for (var g = t; g < p.n_group; g += {{ROW}}u) {
        let score = scores[from_score + g];
        let part = select(exp(score - best), sigmoid_of(score), p.scoring == 1u);
        let used = place(from_score, g) < p.n_used;
        weights[p.at_weights + token * p.n_group + g] = select(0.0, part / divisor * p.scale, used);
    }
}
