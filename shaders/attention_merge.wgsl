// Merges the spans of a head in order, with its attention sink; a workgroup per head of a token. Also
// writes the result in Q8 blocks if the next op reads it so.

@group(0) @binding(0) var<storage, read> parts: array<f32>;
@group(0) @binding(1) var<storage, read> sinks: array<f32>;
@group(0) @binding(2) var<storage, read> batch: array<u32>;
// The positions of each token, in sparse attention.
@group(0) @binding(3) var<storage, read> extras: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<storage, read_write> q: array<u32>;

struct Params {
    at_parts: u32,
    at_sinks: u32,
    at_batch: u32,
    at_extras: u32,
    at_y: u32,
    at_q: u32,
    max_tokens: u32,
    n_rows: u32,
    n_head: u32,
    d_value: u32,
    n_spans: u32,
    // As in attention.wgsl.
    window: u32,
    has_sinks: u32,
    quantized: u32,
}
var<immediate> p: Params;

{{include window}}
{{include quantize_y}}

// 1 for a token of the step, 0 for padding.
var<workgroup> real: u32;
// The largest score and the sum of weights of each span that has positions of the token; the factor of
// its sums.
var<workgroup> found: array<vec2<f32>, 64>;
var<workgroup> factors: array<f32, 64>;

@compute @workgroup_size({{ROW}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = group.x + group.y * groups.x;
    let head = at % p.n_head;
    let t = at / p.n_head;
    if (lane == 0u) { real = select(0u, 1u, t < min(batch[p.at_batch], p.n_rows)); }
    if (workgroupUniformLoad(&real) == 0u) {
        return;
    }
    let pos = batch[p.at_batch + 4u + 2u * p.max_tokens + t];
    // Spans with at least one chunk of 64 positions follow each other and wrap around to span 0.
    let first = first_seen(pos, p.window) / 64u;
    let n = min((end_seen(t, pos, p.window) - 1u) / 64u + 1u - first, p.n_spans);
    let width = p.d_value + 2u;
    let from_part = p.at_parts + at * p.n_spans * width;
    if (lane < n) {
        let part = from_part + (first + lane) % p.n_spans * width;
        found[lane] = vec2<f32>(parts[part], parts[part + 1u]);
    }
    workgroupBarrier();
    var largest = -3.0e38;
    if (p.has_sinks != 0u) { largest = sinks[p.at_sinks + head]; }
    for (var i = 0u; i < n; i++) { largest = max(largest, found[i].x); }
    if (lane < n) { factors[lane] = exp(found[lane].x - largest); }
    workgroupBarrier();
    var total = 0.0;
    if (p.has_sinks != 0u) { total = exp(sinks[p.at_sinks + head] - largest); }
    for (var i = 0u; i < n; i++) { total += found[i].y * factors[i]; }
    for (var col = lane; col < p.d_value; col += {{ROW}}u) {
        var sum = 0.0;
        for (var i = 0u; i < n; i++) {
            sum += parts[from_part + (first + i) % p.n_spans * width + 2u + col] * factors[i];
        }
        y[p.at_y + at * p.d_value + col] = sum / total;
    }
    if (p.quantized != 0u) {
        let n_blocks = p.d_value / 32u;
        quantize_y(p.at_y + at * p.d_value, n_blocks, p.at_q + at * n_blocks * 12u, lane);
    }
}
