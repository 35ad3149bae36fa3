// Computes the neuron values of a dense block in decode, as `ffn_few.wgsl` does for all rows, and
// quantises them to Q8 for the down projection: a workgroup has whole blocks of 32 neurons.

@group(0) @binding(0) var<storage, read> gate_data: {{gate_type}};
@group(0) @binding(1) var<storage, read> up_data: {{up_type}};
@group(0) @binding(2) var<storage, read> tables: array<u32>;
@group(0) @binding(3) var<storage, read> gate_x: {{gate_x_type}};
@group(0) @binding(4) var<storage, read> up_x: {{up_x_type}};
@group(0) @binding(5) var<storage, read> bias_gate: array<f32>;
@group(0) @binding(6) var<storage, read> bias_up: array<f32>;
@group(0) @binding(7) var<storage, read> threshold: array<f32>;
@group(0) @binding(8) var<storage, read_write> h: array<u32>;
@group(0) @binding(9) var<storage, read_write> counts: array<atomic<u32>>;
@group(0) @binding(10) var<storage, read_write> q: array<u32>;

struct Params {
    at_gate: u32,
    at_up: u32,
    at_tables: u32,
    at_gate_x: u32,
    at_up_x: u32,
    at_bias_gate: u32,
    at_bias_up: u32,
    at_threshold: u32,
    at_h: u32,
    at_counts: u32,
    at_q: u32,
    // Number of rows of the matrices, first bound row, and number of bound rows: whole blocks.
    n_rows: u32,
    first: u32,
    n: u32,
    n_cols: u32,
    n_tokens: u32,
    lanes: u32,
    // Bits 0 to 2: whether the op has a bias of the gate, a bias of up and thresholds.
    has: u32,
    kind: u32,
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
{{include quantize_block}}

// Values of a block of neurons for each token.
var<workgroup> values: array<f32, 32u * TOKENS>;

@compute @workgroup_size({{ROW}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let per = {{ROW}}u / p.lanes;
    let lane = t % p.lanes;
    for (var block = 32u * (group.x + group.y * groups.x); block < p.n; block += 32u * groups.x * groups.y) {
        for (var token = 0u; token < p.n_tokens; token += TOKENS) {
            for (var base = 0u; base < 32u; base += per) {
                let local = block + base + t / p.lanes;
                let row = p.first + local;
                var limit = 0.0;
                if ((p.has & 4u) != 0u) { limit = threshold[p.at_threshold + row]; }
                let gates = gate_dots(p.at_gate + local * p.gate_words, p.n_cols, lane, p.lanes, 0u, p.n_cols, token, p.n_tokens);
                var tests = row_sum(gates, t, p.lanes);
                if ((p.has & 1u) != 0u) { tests += Sums(bias_gate[p.at_bias_gate + row]); }
                var alive = false;
                for (var j = 0u; j < TOKENS; j++) {
                    alive = alive || (token + j < p.n_tokens && !is_dropped(pick(tests, j), limit, 0.0));
                }
                var ups = tests;
                if (p.kind != 0u) {
                    var mine = Sums();
                    if (alive) { mine = up_dots(p.at_up + local * p.up_words, p.n_cols, lane, p.lanes, 0u, p.n_cols, token, p.n_tokens); }
                    ups = row_sum(mine, t, p.lanes);
                    if ((p.has & 2u) != 0u) { ups += Sums(bias_up[p.at_bias_up + row]); }
                }
                if (lane < TOKENS && token + lane < p.n_tokens) {
                    let test = pick(tests, lane);
                    var word = DROPPED;
                    if (!is_dropped(test, limit, 0.0)) {
                        word = carried(neuron(p.kind, p.activation, test, pick(ups, lane), p.alpha, p.slope, p.cap));
                        atomicAdd(&counts[p.at_counts + token + lane], 1u);
                    }
                    h[p.at_h + (token + lane) * p.n_rows + row] = word;
                    values[32u * lane + base + t / p.lanes] = bitcast<f32>(word);
                }
            }
            workgroupBarrier();
            // Eight lanes quantise the block of a token.
            let own = t / 8u;
            let inside = own < TOKENS && token + own < p.n_tokens;
            var v = vec4<f32>(0.0);
            if (inside) {
                let at = 32u * own + 4u * (t % 8u);
                v = vec4<f32>(values[at], values[at + 1u], values[at + 2u], values[at + 3u]);
            }
            let to = (token + own) * (p.n_rows / 32u) + (p.first + block) / 32u;
            quantize_block(v, inside, p.at_q + 12u * to, t);
            workgroupBarrier();
        }
    }
}
