// Adds four weighted values.
for (var j = 0u; j < 4u; j++) {
    let value = v_eight(rows[j], g * p.d_value, col, p.d_value);
    {{repeat i in QUERIES}}
    {
        let weight = scores[{{i}}u * CHUNK + 4u * quad + j];
        low_{{i}} += weight * value.lo;
        high_{{i}} += weight * value.hi;
    }
    {{end}}
}
