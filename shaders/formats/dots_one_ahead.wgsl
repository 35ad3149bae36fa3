// This lane's share of a row's product with one token. Four units are loaded before the first is
// used, since a lane waits for memory much longer than it computes.
fn {{self}}_dots(row: u32, n_cols: u32, lane: u32, lanes: u32, x_first: u32, x_cols: u32, token: u32, n_tokens: u32) -> Sums {
    let first = x_first + token * x_cols;
    let n = {{self}}_units(n_cols);
    var sum = 0.0;
    var i = lane;
    for (; i + 3u * lanes < n; i += 4u * lanes) {
        let a = {{self}}_load(row, n_cols, i);
        let b = {{self}}_load(row, n_cols, i + lanes);
        let c = {{self}}_load(row, n_cols, i + 2u * lanes);
        let d = {{self}}_load(row, n_cols, i + 3u * lanes);
        sum = {{self}}_dot(sum, a, first, n_cols, i);
        sum = {{self}}_dot(sum, b, first, n_cols, i + lanes);
        sum = {{self}}_dot(sum, c, first, n_cols, i + 2u * lanes);
        sum = {{self}}_dot(sum, d, first, n_cols, i + 3u * lanes);
    }
    for (; i < n; i += lanes) { sum = {{self}}_dot(sum, {{self}}_load(row, n_cols, i), first, n_cols, i); }
    return sum;
}
