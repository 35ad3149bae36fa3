// This lane's share of a row's products with four tokens; missing tokens repeat the last. Two units
// are loaded before the first is used.
fn {{self}}_add(sums: vec4<f32>, unit: {{self}}_Unit, first: vec4<u32>, n_cols: u32, i: u32) -> vec4<f32> {
    return vec4<f32>(
        {{self}}_dot(sums.x, unit, first.x, n_cols, i), {{self}}_dot(sums.y, unit, first.y, n_cols, i),
        {{self}}_dot(sums.z, unit, first.z, n_cols, i), {{self}}_dot(sums.w, unit, first.w, n_cols, i));
}

fn {{self}}_dots(row: u32, n_cols: u32, lane: u32, lanes: u32, x_first: u32, x_cols: u32, token: u32, n_tokens: u32) -> Sums {
    let tokens = min(vec4<u32>(token) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(n_tokens - 1u));
    let first = vec4<u32>(x_first) + tokens * x_cols;
    let n = {{self}}_units(n_cols);
    var sums = vec4<f32>(0.0);
    var i = lane;
    for (; i + lanes < n; i += 2u * lanes) {
        let a = {{self}}_load(row, n_cols, i);
        let b = {{self}}_load(row, n_cols, i + lanes);
        sums = {{self}}_add(sums, a, first, n_cols, i);
        sums = {{self}}_add(sums, b, first, n_cols, i + lanes);
    }
    if (i < n) { sums = {{self}}_add(sums, {{self}}_load(row, n_cols, i), first, n_cols, i); }
    return sums;
}
