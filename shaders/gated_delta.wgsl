// The gated delta rule. A workgroup holds some columns of one head's state of a sequence, from the first token to the last.
// GROUPS invocations, COLUMNS apart, share a column, with ROWS rows each.

@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read> k: array<f32>;
@group(0) @binding(2) var<storage, read> v: array<f32>;
@group(0) @binding(3) var<storage, read> decay: array<f32>;
@group(0) @binding(4) var<storage, read> beta: array<f32>;
@group(0) @binding(5) var<storage, read> dt_bias: array<f32>;
@group(0) @binding(6) var<storage, read> a: array<f32>;
@group(0) @binding(7) var<storage, read> batch: array<u32>;
@group(0) @binding(8) var<storage, read_write> state: array<f32>;
@group(0) @binding(9) var<storage, read_write> y: array<f32>;

struct Params {
    at_q: u32,
    at_k: u32,
    at_v: u32,
    at_decay: u32,
    at_beta: u32,
    at_dt_bias: u32,
    at_a: u32,
    at_batch: u32,
    at_state: u32,
    at_y: u32,
    max_tokens: u32,
    n_rows: u32,
    n_head_k: u32,
    n_head_v: u32,
    // Value head h reads key head h % heads_modulo / heads_divisor.
    heads_modulo: u32,
    heads_divisor: u32,
    d_k: u32,
    d_v: u32,
    // With a bound, which is negative, the logarithm of a decay factor is between it and 0.
    bound: f32,
    scale: f32,
}
var<immediate> p: Params;

{{include sequence}}
{{include sigmoid}}

const GROUPS: u32 = {{SHARED}}u;
const COLUMNS: u32 = {{FLAT}}u / GROUPS;

// Number of decay factors per token: one, or one for each row of the state.
const FACTORS: u32 = {{FACTORS}}u;

// Double buffers: some lanes read one token's sums while others write those of the next token.
var<workgroup> known: array<f32, 2 * {{FLAT}}>;
var<workgroup> sums: array<f32, 2 * {{FLAT}}>;
var<workgroup> products: array<f32, 2 * {{SHARED}}>;
// Read before a token's last barrier and written after it.
var<workgroup> factors: array<f32, {{FACTORS}}>;

// The decay factor for x, decay plus bias, with the head's rate.
fn decay_factor(x: f32, rate: f32) -> f32 {
    if (p.bound < 0.0) { return exp(p.bound * sigmoid_of(rate * x)); }
    return exp(rate * softplus_of(x));
}

@compute @workgroup_size({{FLAT}})
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) ids: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let block = id.x + id.y * ids.x;
    let n_blocks = (p.d_v + COLUMNS - 1u) / COLUMNS;
    let h = block / n_blocks % p.n_head_v;
    let seq = block / n_blocks / p.n_head_v;
    let tokens = tokens_of(seq, local);
    if (tokens.x == p.n_rows) {
        return;
    }
    let column = local % COLUMNS;
    let group = local / COLUMNS;
    let j = block % n_blocks * COLUMNS + column;
    let inside = j < p.d_v;
    let own = p.at_state + (seq * p.n_head_v + h) * p.d_k * p.d_v + j;
    let key_head = h % p.heads_modulo / p.heads_divisor;
    let fresh = batch_pos(tokens.x) == 0u;
    var held: array<f32, {{ROWS}}>;
    for (var r = 0u; r < {{ROWS}}u; r++) {
        let i = group + GROUPS * r;
        held[r] = 0.0;
        if (inside && i < p.d_k && !fresh) { held[r] = state[own + i * p.d_v]; }
    }
    var turn = 0u;
    for (var t = tokens.x; t <= tokens.y; t++) {
        // Tokens of other sequences in this range have no effect.
        let mine = batch_seq(t) == seq;
        let token = t * p.n_head_v + h;
        let begins = batch_pos(t) == 0u;
        var factor = 1.0;
        if (FACTORS > 1u) {
            for (var i = local; i < p.d_k; i += {{FLAT}}u) {
                let x = decay[p.at_decay + token * p.d_k + i] + dt_bias[p.at_dt_bias + h * p.d_k + i];
                factors[i] = select(decay_factor(x, a[p.at_a + h]), 0.0, begins);
            }
            workgroupBarrier();
        } else {
            let x = decay[p.at_decay + token] + dt_bias[p.at_dt_bias + h];
            factor = select(decay_factor(x, a[p.at_a + h]), 0.0, begins);
        }
        let from_k = p.at_k + (t * p.n_head_k + key_head) * p.d_k;
        let from_q = p.at_q + (t * p.n_head_k + key_head) * p.d_k;
        var by_key = 0.0;
        var by_query = 0.0;
        var product = 0.0;
        for (var r = 0u; r < {{ROWS}}u; r++) {
            let i = group + GROUPS * r;
            if (i < p.d_k) {
                if (FACTORS > 1u && mine) { held[r] *= factors[i]; }
                by_key += held[r] * k[from_k + i];
                by_query += held[r] * q[from_q + i];
                product += k[from_k + i] * q[from_q + i];
            }
        }
        known[turn * {{FLAT}}u + local] = by_key;
        sums[turn * {{FLAT}}u + local] = by_query;
        if (column == 0u) { products[turn * GROUPS + group] = product; }
        workgroupBarrier();
        if (mine && inside) {
            // The new state times q follows from the old state's products: factor * sum + change * (k . q).
            var known_sum = 0.0;
            var sum = 0.0;
            var product_sum = 0.0;
            for (var g = 0u; g < GROUPS; g++) {
                known_sum += known[turn * {{FLAT}}u + g * COLUMNS + column];
                sum += sums[turn * {{FLAT}}u + g * COLUMNS + column];
                product_sum += products[turn * GROUPS + g];
            }
            let strength = sigmoid_of(beta[p.at_beta + token]);
            let change = strength * (v[p.at_v + token * p.d_v + j] - factor * known_sum);
            for (var r = 0u; r < {{ROWS}}u; r++) {
                let i = group + GROUPS * r;
                if (i < p.d_k) { held[r] = factor * held[r] + change * k[from_k + i]; }
            }
            if (group == 0u) { y[p.at_y + token * p.d_v + j] = p.scale * (factor * sum + change * product_sum); }
        }
        turn = 1u - turn;
    }
    for (var r = 0u; r < {{ROWS}}u; r++) {
        let i = group + GROUPS * r;
        if (inside && i < p.d_k) { state[own + i * p.d_v] = held[r]; }
    }
}
