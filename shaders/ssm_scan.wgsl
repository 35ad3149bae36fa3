// The recurrence of Mamba-1 and Mamba-2. NEAR neighbouring invocations share a channel of a sequence, and hold HELD values of its state
// each, from the first token to the last.

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> dt: array<f32>;
@group(0) @binding(2) var<storage, read> dt_bias: array<f32>;
@group(0) @binding(3) var<storage, read> a: array<f32>;
@group(0) @binding(4) var<storage, read> b: array<f32>;
@group(0) @binding(5) var<storage, read> c: array<f32>;
@group(0) @binding(6) var<storage, read> d: array<f32>;
@group(0) @binding(7) var<storage, read> batch: array<u32>;
@group(0) @binding(8) var<storage, read_write> state: array<f32>;
@group(0) @binding(9) var<storage, read_write> y: array<f32>;

struct Params {
    at_x: u32,
    at_dt: u32,
    at_dt_bias: u32,
    at_a: u32,
    at_b: u32,
    at_c: u32,
    at_d: u32,
    at_batch: u32,
    at_state: u32,
    at_y: u32,
    max_tokens: u32,
    n_rows: u32,
    n_head: u32,
    n_group: u32,
    d_head: u32,
    d_state: u32,
    n_rates: u32,
}
var<immediate> p: Params;

{{include sequence}}
{{include sigmoid}}

const NEAR: u32 = {{SHARED}}u;
const CHANNELS: u32 = {{FLAT}}u / NEAR;

// Double buffers: some lanes read one token's sums while others write those of the next token.
var<workgroup> sums: array<f32, 2 * {{FLAT}}>;

@compute @workgroup_size({{FLAT}})
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) ids: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let n = p.n_head * p.d_head;
    let n_blocks = (n + CHANNELS - 1u) / CHANNELS;
    let block = id.x + id.y * ids.x;
    let seq = block / n_blocks;
    let tokens = tokens_of(seq, local);
    if (tokens.x == p.n_rows) {
        return;
    }
    let near = local % NEAR;
    let wanted = block % n_blocks * CHANNELS + local / NEAR;
    let inside = wanted < n;
    // Invocations past the last channel repeat its values and write nothing.
    let channel = min(wanted, n - 1u);
    let h = channel / p.d_head;
    let group = h * p.n_group / p.n_head;
    let own = p.at_state + (seq * n + channel) * p.d_state;
    let fresh = batch_pos(tokens.x) == 0u;
    var held: array<f32, {{HELD}}>;
    for (var r = 0u; r < {{HELD}}u; r++) {
        let i = near + NEAR * r;
        held[r] = 0.0;
        if (i < p.d_state && !fresh) { held[r] = state[own + i]; }
    }
    var turn = 0u;
    for (var t = tokens.x; t <= tokens.y; t++) {
        let mine = batch_seq(t) == seq;
        var sum = 0.0;
        let value = x[p.at_x + t * n + channel];
        if (mine) {
            let step = softplus_of(dt[p.at_dt + t * p.n_head + h] + dt_bias[p.at_dt_bias + h]);
            let rates = p.at_a + h * p.n_rates;
            let begins = batch_pos(t) == 0u;
            var factor = select(exp(step * a[rates]), 0.0, begins);
            let from_group = (t * p.n_group + group) * p.d_state;
            for (var r = 0u; r < {{HELD}}u; r++) {
                let i = near + NEAR * r;
                if (i < p.d_state) {
                    if (p.n_rates > 1u) { factor = select(exp(step * a[rates + i]), 0.0, begins); }
                    held[r] = factor * held[r] + step * value * b[p.at_b + from_group + i];
                    sum += held[r] * c[p.at_c + from_group + i];
                }
            }
        }
        sums[turn * {{FLAT}}u + local] = sum;
        workgroupBarrier();
        if (mine && inside && near == 0u) {
            var total = d[p.at_d + h] * value;
            for (var g = 0u; g < NEAR; g++) { total += sums[turn * {{FLAT}}u + local + g]; }
            y[p.at_y + t * n + channel] = total;
        }
        turn = 1u - turn;
    }
    for (var r = 0u; r < {{HELD}}u; r++) {
        let i = near + NEAR * r;
        if (inside && i < p.d_state) { state[own + i] = held[r]; }
    }
}
