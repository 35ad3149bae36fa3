// This lane's share of the products of row r of {{self}} with TOKENS tokens. If there is no such row,
// it reads another one: all lanes take part in the sums.
fn {{self}}_row(r: u32, n: u32, lane: u32, token: u32, n_tokens: u32) -> Sums {
    let row = p.at_{{self}} + min(r, max(n, 1u) - 1u) * p.row_words;
    return {{self}}_dots(row, p.n_cols, lane, p.lanes, 0u, p.n_cols, token, n_tokens);
}
