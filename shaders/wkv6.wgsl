// RWKV-6's recurrence. A workgroup holds some columns of one head's state of a sequence, from the first token to the last.
// GROUPS invocations, COLUMNS apart, share a column, with ROWS rows each.

@group(0) @binding(0) var<storage, read> r: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read> k: array<f32>;
@group(0) @binding(3) var<storage, read> v: array<f32>;
@group(0) @binding(4) var<storage, read> first: array<f32>;
@group(0) @binding(5) var<storage, read> batch: array<u32>;
@group(0) @binding(6) var<storage, read_write> state: array<f32>;
@group(0) @binding(7) var<storage, read_write> y: array<f32>;

struct Params {
    at_r: u32,
    at_w: u32,
    at_k: u32,
    at_v: u32,
    at_first: u32,
    at_batch: u32,
    at_state: u32,
    at_y: u32,
    max_tokens: u32,
    n_rows: u32,
    n_head: u32,
    d: u32,
    has_first: u32,
}
var<immediate> p: Params;

{{include sequence}}

const GROUPS: u32 = {{SHARED}}u;
const COLUMNS: u32 = {{FLAT}}u / GROUPS;

// Sums over the invocations of a column: the product of the old state with the receptance; and, the same for all columns,
// the weight of the token's value. Double buffers: some lanes read one token's sums while others write those of the next.
var<workgroup> sums: array<f32, 2 * {{FLAT}}>;
var<workgroup> weights: array<f32, 2 * {{SHARED}}>;

@compute @workgroup_size({{FLAT}})
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) ids: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let block = id.x + id.y * ids.x;
    let n_blocks = (p.d + COLUMNS - 1u) / COLUMNS;
    let h = block / n_blocks % p.n_head;
    let seq = block / n_blocks / p.n_head;
    let tokens = tokens_of(seq, local);
    if (tokens.x == p.n_rows) {
        return;
    }
    let column = local % COLUMNS;
    let group = local / COLUMNS;
    let j = block % n_blocks * COLUMNS + column;
    let inside = j < p.d;
    let own = p.at_state + (seq * p.n_head + h) * p.d * p.d + j;
    let fresh = batch_pos(tokens.x) == 0u;
    var held: array<f32, {{ROWS}}>;
    for (var row = 0u; row < {{ROWS}}u; row++) {
        let i = group + GROUPS * row;
        held[row] = 0.0;
        if (inside && i < p.d && !fresh) { held[row] = state[own + i * p.d]; }
    }
    var turn = 0u;
    for (var t = tokens.x; t <= tokens.y; t++) {
        // Tokens of other sequences in this range have no effect.
        let mine = batch_seq(t) == seq;
        let begins = batch_pos(t) == 0u;
        let from_head = (t * p.n_head + h) * p.d;
        var of_state = 0.0;
        var weight = 0.0;
        var decays: array<f32, {{ROWS}}>;
        var keys: array<f32, {{ROWS}}>;
        for (var row = 0u; row < {{ROWS}}u; row++) {
            let i = group + GROUPS * row;
            if (mine && begins) { held[row] = 0.0; }
            if (i < p.d) {
                let at = from_head + i;
                let receptance = r[p.at_r + at];
                decays[row] = exp(-exp(w[p.at_w + at]));
                keys[row] = k[p.at_k + at];
                if (p.has_first != 0u) {
                    // The output reads the state before its decay.
                    of_state += held[row] * receptance;
                    weight += keys[row] * first[p.at_first + h * p.d + i] * receptance;
                } else {
                    keys[row] *= 1.0 - decays[row];
                    of_state += held[row] * decays[row] * receptance;
                    weight += keys[row] * receptance;
                }
            }
        }
        sums[turn * {{FLAT}}u + local] = of_state;
        if (column == 0u) { weights[turn * GROUPS + group] = weight; }
        workgroupBarrier();
        if (mine && inside) {
            let value = v[p.at_v + from_head + j];
            for (var row = 0u; row < {{ROWS}}u; row++) {
                if (group + GROUPS * row < p.d) {
                    held[row] = decays[row] * held[row] + keys[row] * value;
                }
            }
            if (group == 0u) {
                of_state = 0.0;
                weight = 0.0;
                for (var g = 0u; g < GROUPS; g++) {
                    of_state += sums[turn * {{FLAT}}u + g * COLUMNS + column];
                    weight += weights[turn * GROUPS + g];
                }
                y[p.at_y + from_head + j] = of_state + weight * value;
            }
        }
        turn = 1u - turn;
    }
    for (var row = 0u; row < {{ROWS}}u; row++) {
        let i = group + GROUPS * row;
        if (inside && i < p.d) { state[own + i * p.d] = held[row]; }
    }
}
