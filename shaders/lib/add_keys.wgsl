// Adds products of the queries with four keys.
for (var j = 0u; j < 4u; j++) {
    for (var piece = near; piece < pieces; piece += p.lanes) {
        let key = k_eight(rows[j], g * p.d_head, 8u * piece, p.d_head);
        {{repeat i in QUERIES}}
        {
            let at = 2u * ({{i}}u * pieces + piece);
            dots[{{i}}][j] += dot(key.lo, queries[at]) + dot(key.hi, queries[at + 1u]);
        }
        {{end}}
    }
}
