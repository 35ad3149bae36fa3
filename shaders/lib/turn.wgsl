// Sine (x) and cosine (y) of angles up to several 100,000 radians, with an error of about 3e-6.
// Drivers guarantee the precision of `sin` and `cos` only near 0. Source: Cody and Waite's
// reduction, polynomials of Cephes.
fn turn(angle: f32) -> vec2<f32> {
    let size = abs(angle);
    let quarter = floor(fma(size, 0.636619772, 0.5));
    // Subtracts quarter turns in steps whose products are exact.
    let many = floor(quarter / 256.0);
    let few = quarter - 256.0 * many;
    var rest = (size - many * 402.0) - few * 1.5703125;
    rest = (rest - quarter * 4.837512969970703e-4) - quarter * 7.549789954891882e-8;
    let z = rest * rest;
    let odd = ((-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1) * z * rest + rest;
    let even = ((2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2) * z * z
        - 0.5 * z + 1.0;
    let which = u32(quarter) & 3u;
    let swap = (which & 1u) == 1u;
    var sine = select(odd, even, swap);
    var cosine = select(even, odd, swap);
    if (which >= 2u) { sine = -sine; }
    if (which == 1u || which == 2u) { cosine = -cosine; }
    return vec2<f32>(select(sine, -sine, angle < 0.0), cosine);
}

// Two values rotated by an angle, and scaled.
fn rotated(a: f32, b: f32, angle: f32, scale: f32) -> vec2<f32> {
    let sine_cosine = turn(angle) * scale;
    return vec2<f32>(a * sine_cosine.y - b * sine_cosine.x, a * sine_cosine.x + b * sine_cosine.y);
}
