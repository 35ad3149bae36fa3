// This lane's share of a row's product with one token.
fn {{self}}_dots(row: u32, n_cols: u32, lane: u32, lanes: u32, x_first: u32, x_cols: u32, token: u32, n_tokens: u32) -> Sums {
    let first = x_first + token * x_cols;
    var sum = 0.0;
    for (var i = lane; i < {{self}}_units(n_cols); i += lanes) {
        sum = {{self}}_dot(sum, {{self}}_load(row, n_cols, i), first, n_cols, i);
    }
    return sum;
}
