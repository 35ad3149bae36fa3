// Adds products of the queries with four keys, which are loaded at once.
for (var piece = near; piece < pieces; piece += p.lanes) {
    let a = k_eight(rows.x, g * p.d_head, 8u * piece, p.d_head);
    let b = k_eight(rows.y, g * p.d_head, 8u * piece, p.d_head);
    let c = k_eight(rows.z, g * p.d_head, 8u * piece, p.d_head);
    let d = k_eight(rows.w, g * p.d_head, 8u * piece, p.d_head);
    {{repeat i in QUERIES}}
    {
        let lo = queries[2u * ({{i}}u * pieces + piece)];
        let hi = queries[2u * ({{i}}u * pieces + piece) + 1u];
        dots[{{i}}] += vec4<f32>(dot(a.lo, lo), dot(b.lo, lo), dot(c.lo, lo), dot(d.lo, lo));
        dots[{{i}}] += vec4<f32>(dot(a.hi, hi), dot(b.hi, hi), dot(c.hi, hi), dot(d.hi, hi));
    }
    {{end}}
}
