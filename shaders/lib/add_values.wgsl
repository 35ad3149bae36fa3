// Adds four weighted values.
for (var j = 0u; j < 4u; j++) {
    let own = p.at_v + (row + clamp(pos + j, first, last) - pos) * p.v_words;
    let value = v_eight(own, g * p.d_value, col, p.d_value);
    {{repeat i in QUERIES}}
    {
        let weight = scores[{{i}}u * CHUNK + 4u * quad + j];
        low_{{i}} += weight * value.lo;
        high_{{i}} += weight * value.hi;
    }
    {{end}}
}
