// RWKV-7's recurrence.

@group(0) @binding(0) var<storage, read> r: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read> k: array<f32>;
@group(0) @binding(3) var<storage, read> v: array<f32>;
@group(0) @binding(4) var<storage, read> a: array<f32>;
@group(0) @binding(5) var<storage, read> first: array<f32>;
@group(0) @binding(6) var<storage, read> mix_of: array<f32>;
@group(0) @binding(7) var<storage, read> vectors: array<f32>;
@group(0) @binding(8) var<storage, read> batch: array<u32>;
@group(0) @binding(9) var<storage, read_write> state: array<f32>;
@group(0) @binding(10) var<storage, read_write> y: array<f32>;
@group(0) @binding(11) var<storage, read_write> bonus: array<f32>;

struct Params {
    at_r: u32,
    at_w: u32,
    at_k: u32,
    at_v: u32,
    at_a: u32,
    at_first: u32,
    at_mix: u32,
    at_vectors: u32,
    at_batch: u32,
    at_state: u32,
    at_y: u32,
    at_bonus: u32,
    max_tokens: u32,
    n_rows: u32,
    n_head: u32,
    d: u32,
    has_first: u32,
    decay_factor: f32,
    min_norm: f32,
}
var<immediate> p: Params;

{{include sequence}}
{{include sigmoid}}

{{include wkv_state}}

// Sums over the invocations of a column: products of the old state with `u` and the decayed receptance; and, the same for
// all columns, `u . u`, `k' . r`, `(u * rate) . r` and the weight of the bonus. Double buffers: some lanes read one token's
// sums while others write those of the next token.
var<workgroup> sums: array<vec2<f32>, 2 * {{FLAT}}>;
var<workgroup> products: array<vec4<f32>, 2 * {{SHARED}}>;

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
    let n = p.n_head * p.d;
    var turn = 0u;
    for (var t = tokens.x; t <= tokens.y; t++) {
        // Tokens of other sequences in this range have no effect.
        let mine = batch_seq(t) == place.seq;
        let begins = batch_pos(t) == 0u;
        let from_head = t * n + h * p.d;
        let vector = p.at_vectors + h * p.d;
        var of_state = vec2(0.0);
        var product = vec4(0.0);
        var decays: array<f32, {{ROWS}}>;
        var removed: array<f32, {{ROWS}}>;
        var keys: array<f32, {{ROWS}}>;
        for (var row = 0u; row < {{ROWS}}u; row++) {
            let i = group + GROUPS * row;
            if (mine && begins) { held[row] = 0.0; }
            if (i < p.d) {
                let at = from_head + i;
                let rate = sigmoid_of(a[p.at_a + at]);
                let receptance = r[p.at_r + at];
                let raw = k[p.at_k + at];
                let u = raw * vectors[vector + i];
                decays[row] = exp(p.decay_factor * sigmoid_of(w[p.at_w + at]));
                keys[row] = raw * (1.0 + vectors[vector + n + i] * (rate - 1.0));
                removed[row] = u * rate;
                of_state += held[row] * vec2(u, decays[row] * receptance);
                let with_key = keys[row] * receptance;
                product += vec4(u * u, with_key, removed[row] * receptance, with_key * vectors[vector + 2u * n + i]);
            }
        }
        sums[turn * {{FLAT}}u + local] = of_state;
        if (column == 0u) { products[turn * GROUPS + group] = product; }
        workgroupBarrier();
        if (mine && inside) {
            of_state = vec2(0.0);
            product = vec4(0.0);
            for (var g = 0u; g < GROUPS; g++) {
                of_state += sums[turn * {{FLAT}}u + g * COLUMNS + column];
                product += products[turn * GROUPS + g];
            }
            // `u` has length 1 after a division by `length`.
            let length = max(sqrt(product.x), p.min_norm);
            let known = of_state.x / length / length;
            var value = v[p.at_v + from_head + j];
            if (p.has_first != 0u) {
                value += sigmoid_of(mix_of[p.at_mix + from_head + j]) * (first[p.at_first + from_head + j] - value);
            }
            for (var row = 0u; row < {{ROWS}}u; row++) {
                if (group + GROUPS * row < p.d) {
                    held[row] = decays[row] * held[row] + keys[row] * value - removed[row] * known;
                }
            }
            if (group == 0u) {
                y[p.at_y + from_head + j] = of_state.y + value * product.y - known * product.z;
                bonus[p.at_bonus + from_head + j] = product.w * value + vectors[vector + 3u * n + j];
            }
        }
        turn = 1u - turn;
    }
    store_state(place);
}
