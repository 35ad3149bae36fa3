// Adds four weighted values, which are loaded at once.
let a = v_eight(rows.x, g * p.d_value, col, p.d_value);
let b = v_eight(rows.y, g * p.d_value, col, p.d_value);
let c = v_eight(rows.z, g * p.d_value, col, p.d_value);
let d = v_eight(rows.w, g * p.d_value, col, p.d_value);
{{repeat i in QUERIES}}
{
    let w = four({{i}}u * CHUNK + 4u * quad);
    low_{{i}} += w.x * a.lo + w.y * b.lo + w.z * c.lo + w.w * d.lo;
    high_{{i}} += w.x * a.hi + w.y * b.hi + w.z * c.hi + w.w * d.hi;
}
{{end}}
