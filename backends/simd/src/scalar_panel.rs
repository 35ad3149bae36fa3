//! Products of panels with tokens in plain Rust. The inner loop runs over rows, so the compiler can
//! vectorise it.

use std::ops::Range;

use hal::format::{Format, Quants};

use super::grid;
use super::panel::{
    BIAS, Factors, FillFn, MINS, PANEL_ROWS, PanelFn, SCALES, TokenRows, fill_panel, sums_of_16,
};
use super::panel_rows::unpack;

/// Number of rows and columns that are transposed at a time.
const SIDE: usize = 8;

pub(super) const FILL: FillFn = |format, rows, panel| {
    fill_panel::<SIDE>(
        format,
        rows,
        panel,
        BIAS,
        |row, words| {
            unpack(
                format,
                row,
                words,
                |format: Format, bytes, out| format.dequantize(bytes, out),
                look_up_pairs,
                |format, row, codes, scales| grid::unpack(format, row, -128, codes, scales),
            );
        },
        |words, at, panel, first| {
            for column in at..at + SIDE {
                for (row, words) in words.0.iter().enumerate() {
                    panel[column * PANEL_ROWS + first + row] = words[column];
                }
            }
        },
    );
};

/// The entries of `table` for the low nibbles of 16 bytes, then for the high nibbles.
pub(super) fn look_up_pairs(table: &[i8; 16], pairs: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(16);
    for ((low, high), &pair) in low.iter_mut().zip(high).zip(pairs) {
        *low = table[usize::from(pair & 15)] as u8;
        *high = table[usize::from(pair >> 4)] as u8;
    }
}

pub(super) const MULTIPLY: PanelFn = |format, panel, k, x, sums| {
    x.check_bounds(sums.len(), &k, panel);
    for (t, sums) in sums.iter_mut().enumerate() {
        let t = x.row(t);
        let more = match format.quants() {
            None => plain(panel, &x.acts.f32()[t * x.n_cols..][k.clone()]),
            Some(Quants { group: 16, has_min, .. }) => quantised::<16>(panel, *has_min, &k, x, t),
            Some(Quants { has_min, .. }) => quantised::<32>(panel, *has_min, &k, x, t),
        };
        sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    }
};

fn plain(panel: &[f32], x: &[f32]) -> [f32; PANEL_ROWS] {
    let mut out = [0.0; PANEL_ROWS];
    for (weights, &x) in panel.as_chunks::<PANEL_ROWS>().0.iter().zip(x) {
        out.iter_mut().zip(weights).for_each(|(out, w)| *out += w * x);
    }
    out
}

fn quantised<const GROUP: usize>(
    panel: &[f32],
    has_min: bool,
    k: &Range<usize>,
    x: &TokenRows<'_>,
    t: usize,
) -> [f32; PANEL_ROWS] {
    let mut out = [0.0; PANEL_ROWS];
    let mut factors = Factors::default();
    factors.set::<GROUP, true>(x, t, k, 0, sums_of_16);
    let q = x.acts.q8().q[t * x.n_cols..][k.clone()].as_chunks::<GROUP>().0;
    let table = |at: usize| &panel.as_chunks::<PANEL_ROWS>().0[at];
    let codes: &[[[u8; 4]; PANEL_ROWS]] = bytemuck::cast_slice(&panel[..SCALES * PANEL_ROWS]);
    for (g, (q, codes)) in q.iter().zip(codes.chunks_exact(GROUP / 4)).enumerate() {
        let mut dots = [0i32; PANEL_ROWS];
        for (q, codes) in q.as_chunks::<4>().0.iter().zip(codes) {
            for (dot, codes) in dots.iter_mut().zip(codes) {
                for (&code, &q) in codes.iter().zip(q) {
                    *dot += (i32::from(code) - BIAS) * i32::from(q);
                }
            }
        }
        let d = factors.d[g * GROUP / 32];
        for ((out, dot), scale) in out.iter_mut().zip(dots).zip(table(SCALES + g)) {
            *out += scale * d * dot as f32;
        }
        if has_min {
            let offset = factors.offset[g];
            out.iter_mut().zip(table(MINS + g)).for_each(|(out, min)| *out += min * offset);
        }
    }
    out
}
