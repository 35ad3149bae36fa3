// This lane's share of a row's products with four tokens; missing tokens repeat the last.
fn {{self}}_dots(row: u32, n_cols: u32, lane: u32, lanes: u32, x_first: u32, x_cols: u32, token: u32, n_tokens: u32) -> Sums {
    let tokens = min(vec4<u32>(token) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(n_tokens - 1u));
    let first = vec4<u32>(x_first) + tokens * x_cols;
    var sums = vec4<f32>(0.0);
    for (var i = lane; i < {{self}}_units(n_cols); i += lanes) {
        let unit = {{self}}_load(row, n_cols, i);
        sums = vec4<f32>(
            {{self}}_dot(sums.x, unit, first.x, n_cols, i), {{self}}_dot(sums.y, unit, first.y, n_cols, i),
            {{self}}_dot(sums.z, unit, first.z, n_cols, i), {{self}}_dot(sums.w, unit, first.w, n_cols, i));
    }
    return sums;
}
