// Computes neuron values in decode: gate first, up only for active neurons, with a fixed
// number of lanes per neuron. The neurons are all rows, or the rows of a list.

@group(0) @binding(0) var<storage, read> gate_data: {{gate_type}};
@group(0) @binding(1) var<storage, read> up_data: {{up_type}};
@group(0) @binding(2) var<storage, read> tables: array<u32>;
@group(0) @binding(3) var<storage, read> gate_x: {{gate_x_type}};
@group(0) @binding(4) var<storage, read> up_x: {{up_x_type}};
@group(0) @binding(5) var<storage, read> ids: array<u32>;
@group(0) @binding(6) var<storage, read> count: array<u32>;
@group(0) @binding(7) var<storage, read> members: array<u32>;
@group(0) @binding(8) var<storage, read> bias_gate: array<f32>;
@group(0) @binding(9) var<storage, read> bias_up: array<f32>;
@group(0) @binding(10) var<storage, read> threshold: array<f32>;
@group(0) @binding(11) var<storage, read> group_weight: array<f32>;
@group(0) @binding(12) var<storage, read> starts: array<u32>;
@group(0) @binding(13) var<storage, read_write> h: array<u32>;
@group(0) @binding(14) var<storage, read_write> counts: array<atomic<u32>>;

struct Params {
    at_gate: u32,
    at_up: u32,
    at_tables: u32,
    at_gate_x: u32,
    at_up_x: u32,
    at_ids: u32,
    at_count: u32,
    at_members: u32,
    at_bias_gate: u32,
    at_bias_up: u32,
    at_threshold: u32,
    at_group_weight: u32,
    at_starts: u32,
    at_h: u32,
    at_counts: u32,
    // Number of rows of the matrices, first bound row, and number of bound rows.
    n_rows: u32,
    first: u32,
    n: u32,
    n_cols: u32,
    n_tokens: u32,
    // Lanes per row, and in the upper 16 bits the membership bit of the first token.
    lanes_and_bit: u32,
    // Capacity of the row list, and its membership words per row.
    capacity: u32,
    words: u32,
    n_group: u32,
    // Bits 0 to 3: whether the op has a bias of the gate, a bias of up, thresholds and a row list;
    // from bit 4 on: the FFN kind.
    has: u32,
    activation: u32,
    skip: u32,
    alpha: f32,
    slope: f32,
    cap: f32,
    gate_words: u32,
    up_words: u32,
}
var<immediate> p: Params;

{{include block}}
{{include tokens}}
{{include gate}}
{{include up}}
{{include row_sum}}
{{include activation}}
{{include wanted}}
{{include group_of}}

var<workgroup> listed: u32;

fn has_list() -> bool { return (p.has & 8u) != 0u; }

// Factor of a row for a token: 0 if the token does not use it.
fn factor(i: u32, row: u32, token: u32) -> f32 {
    if (token >= p.n_tokens) { return 0.0; }
    if (has_list() && (members[p.at_members + i * p.words] >> ((p.lanes_and_bit >> 16u) + token) & 1u) == 0u) { return 0.0; }
    if (p.n_group == 0u) { return 1.0; }
    return group_weight[p.at_group_weight + token * p.n_group + group_of(row)];
}

@compute @workgroup_size({{ROW}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    if (t == 0u) { listed = select(p.n, min(count[p.at_count], p.capacity), has_list()); }
    let n = workgroupUniformLoad(&listed);
    let lanes = p.lanes_and_bit & 0xffffu;
    let per = {{ROW}}u / lanes;
    let lane = t % lanes;
    let kind = p.has >> 4u;
    for (var at = per * (group.x + group.y * groups.x); at < n; at += per * groups.x * groups.y) {
        let i = at + t / lanes;
        var row = p.n_rows;
        if (i < n) {
            row = p.first + i;
            if (has_list()) { row = ids[p.at_ids + i]; }
        }
        let here = row >= p.first && row - p.first < p.n;
        let local = select(0u, row - p.first, here);
        let limit = select(0.0, threshold[p.at_threshold + select(0u, row, here)], (p.has & 4u) != 0u);
        for (var token = 0u; token < p.n_tokens; token += TOKENS) {
            var wanted = false;
            for (var j = 0u; j < TOKENS; j++) { wanted = wanted || (here && factor(i, row, token + j) != 0.0); }
            var mine = Sums();
            if (wanted) { mine = gate_dots(p.at_gate + local * p.gate_words, p.n_cols, lane, lanes, 0u, p.n_cols, token, p.n_tokens); }
            var tests = row_sum(mine, t, lanes);
            if ((p.has & 1u) != 0u && here) { tests += Sums(bias_gate[p.at_bias_gate + row]); }
            var alive = false;
            for (var j = 0u; j < TOKENS; j++) {
                alive = alive || (wanted && factor(i, row, token + j) != 0.0 && !is_dropped(pick(tests, j), limit, 0.0));
            }
            var ups = tests;
            if (kind != 0u) {
                mine = Sums();
                if (alive) { mine = up_dots(p.at_up + local * p.up_words, p.n_cols, lane, lanes, 0u, p.n_cols, token, p.n_tokens); }
                ups = row_sum(mine, t, lanes);
                if ((p.has & 2u) != 0u && here) { ups += Sums(bias_up[p.at_bias_up + row]); }
            }
            if (here && lane < TOKENS && token + lane < p.n_tokens) {
                let by = factor(i, row, token + lane);
                let test = pick(tests, lane);
                var word = DROPPED;
                if (by != 0.0 && !is_dropped(test, limit, 0.0)) {
                    word = carried(by * neuron(kind, p.activation, test, pick(ups, lane), p.alpha, p.slope, p.cap));
                    atomicAdd(&counts[p.at_counts + token + lane], 1u);
                }
                h[p.at_h + (token + lane) * p.n_rows + row] = word;
            }
        }
    }
}
