// RWKV-6's recurrence.

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

{{include wkv_state}}

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
    let place = place_of(id.x + id.y * ids.x, local);
    let tokens = tokens_of(place.seq, local);
    if (tokens.x == p.n_rows) {
        return;
    }
    let h = place.h;
    let j = place.j;
    let column = place.column;
    let group = place.group;
    let inside = j < p.d;
    load_state(place, batch_pos(tokens.x) == 0u);
    var turn = 0u;
    for (var t = tokens.x; t <= tokens.y; t++) {
        // Tokens of other sequences in this range have no effect.
        let mine = batch_seq(t) == place.seq;
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
    store_state(place);
}
