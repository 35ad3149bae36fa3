#pragma once
#include "dialect.h"

/// Cosine (x) and sine (y) of angles up to several 100,000 radians, with an error of about 3e-6. The
/// platforms' own functions cost more: they cover all floats, and spill registers for large angles.
/// Source: Cody and Waite's reduction, polynomials of Cephes.
DEVICE float2 turn(float angle) {
    const float size = fabsf(angle);
    const float quarter = floorf(fmaf(size, 0.636619772f, 0.5f));
    // Subtracts quarter turns in steps whose products are exact.
    const float many = floorf(quarter / 256.0f);
    const float few = quarter - 256.0f * many;
    float rest = (size - many * 402.0f) - few * 1.5703125f;
    rest = (rest - quarter * 4.837512969970703e-4f) - quarter * 7.549789954891882e-8f;
    const float z = rest * rest;
    const float odd = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * rest + rest;
    const float even =
        ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z - 0.5f * z + 1.0f;
    const unsigned which = unsigned(quarter) & 3u;
    const bool swap = which & 1u;
    float sine = swap ? even : odd;
    float cosine = swap ? odd : even;
    if (which >= 2) sine = -sine;
    if (which == 1 || which == 2) cosine = -cosine;
    return make_float2(cosine, angle < 0.0f ? -sine : sine);
}

/// Rotates the pair of values at `one` and `other` by an angle, and scales it by `scale`.
DEVICE void turn_pair(float* one, float* other, float angle, float scale) {
    const float2 turned = turn(angle);
    const float cosine = scale * turned.x, sine = scale * turned.y;
    const float a = *one, b = *other;
    *one = fmaf(a, cosine, -(b * sine));
    *other = fmaf(a, sine, b * cosine);
}
