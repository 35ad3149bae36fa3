//! Kernels in plain Rust for every processor. Blocks are unpacked first, so one loop serves all
//! formats.

use hal::format::{Code, Format, Q8_BLOCK, TransposedLayout, UnpackedBlock, quantize_q8};
use half::f16;

use super::rows::RowRun;
use super::transposed::{NeuronRun, UNIT, for_runs, for_units};
use super::{ActView, DotKernels, PanelKernels, SumRowsFn, Table, TransposedFn, scalar_panel};

pub(super) const TABLE: Table = Table {
    dot,
    sum_rows,
    transposed: |_| transposed as TransposedFn,
    panel: PanelKernels { fill: scalar_panel::FILL, multiply: scalar_panel::MULTIPLY },
    quantize: quantize_q8,
    sum_squares: |x| sum_in_lanes(x.len(), |i| x[i] * x[i]),
    attention: &super::portable::attention::ATTENTION,
    activate: super::portable::activation::ACTIVATE,
    soft_cap: super::portable::activation::SOFT_CAP,
    gate: super::portable::activation::GATE,
    recurrent: &super::portable::recurrent::RECURRENT,
};

macro_rules! per_format {
    ($format:expr, $entry:ident) => {
        match $format {
            Format::F32 => $entry!(F32),
            Format::F16 => $entry!(F16),
            Format::BF16 => $entry!(BF16),
            Format::Q4_0 => $entry!(Q4_0),
            Format::Q4_1 => $entry!(Q4_1),
            Format::Q5_0 => $entry!(Q5_0),
            Format::Q5_1 => $entry!(Q5_1),
            Format::Q8_0 => $entry!(Q8_0),
            Format::Q2_K => $entry!(Q2_K),
            Format::Q3_K => $entry!(Q3_K),
            Format::Q4_K => $entry!(Q4_K),
            Format::Q5_K => $entry!(Q5_K),
            Format::Q6_K => $entry!(Q6_K),
            Format::IQ2_XXS => $entry!(IQ2_XXS),
            Format::IQ2_XS => $entry!(IQ2_XS),
            Format::IQ3_XXS => $entry!(IQ3_XXS),
            Format::IQ1_S => $entry!(IQ1_S),
            Format::IQ4_NL => $entry!(IQ4_NL),
            Format::IQ3_S => $entry!(IQ3_S),
            Format::IQ2_S => $entry!(IQ2_S),
            Format::IQ4_XS => $entry!(IQ4_XS),
            Format::IQ1_M => $entry!(IQ1_M),
            Format::MXFP4 => $entry!(MXFP4),
            Format::Q1_0 => $entry!(Q1_0),
            Format::U32 => $entry!(U32),
        }
    };
}

fn dot(format: Format) -> DotKernels {
    macro_rules! entry {
        ($name:ident) => {
            DotKernels {
                one: |run, x, out| rows(Format::$name, run, x, out),
                four: |run, x, out| rows(Format::$name, run, x, out),
                eight: |run, x, out| rows(Format::$name, run, x, out),
            }
        };
    }
    per_format!(format, entry)
}

fn sum_rows(format: Format) -> SumRowsFn {
    macro_rules! entry {
        ($name:ident) => {
            |matrix, list, y| {
                for &(id, h) in list {
                    add_row(Format::$name, h, matrix.row(id as usize), y);
                }
            }
        };
    }
    per_format!(format, entry)
}

/// The sum of `n` terms in eight interleaved sums, which the compiler can keep in vector registers.
fn sum_in_lanes(n: usize, term: impl Fn(usize) -> f32) -> f32 {
    let mut sums = [0.0f32; 8];
    let whole = n / 8 * 8;
    for first in (0..whole).step_by(8) {
        for (k, sum) in sums.iter_mut().enumerate() {
            *sum += term(first + k);
        }
    }
    sums.iter().sum::<f32>() + (whole..n).map(term).sum::<f32>()
}

#[inline(always)]
fn rows<const N: usize>(
    format: Format,
    run: &RowRun<'_>,
    x: [ActView<'_>; N],
    out: &mut [[f32; N]],
) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = dots(format, run.row(i).bytes, x);
    }
}

fn dots<const N: usize>(format: Format, row: &[u8], x: [ActView<'_>; N]) -> [f32; N] {
    let Some(quants) = format.quants() else {
        return plain_dots(format, row, x.map(ActView::f32));
    };
    let x = x.map(ActView::q8);
    for x in &x {
        assert_eq!(
            format.row_bytes(x.q.len()),
            Some(row.len()),
            "the activations and the row differ in length"
        );
    }
    let mut parts = UnpackedBlock::default();
    let mut out = [0.0; N];
    for (b, block) in row.chunks_exact(format.block_bytes()).enumerate() {
        quants.unpack(block, &mut parts);
        let groups = parts.codes[..format.block_values()].chunks_exact(quants.group);
        for (g, codes) in groups.enumerate() {
            let first = b * format.block_values() + g * quants.group;
            for (x, out) in x.iter().zip(&mut out) {
                let q = &x.q[first..first + quants.group];
                let terms = codes.iter().zip(q).map(|(&c, &q)| i32::from(c) * i32::from(q));
                *out += parts.scales[g] * x.d[first / 32] * terms.sum::<i32>() as f32;
                if quants.has_min {
                    let total = match quants.group {
                        Q8_BLOCK => x.sum[first / Q8_BLOCK],
                        _ => q.iter().map(|&q| i32::from(q)).sum(),
                    };
                    *out -= parts.mins[g] * x.d[first / 32] * total as f32;
                }
            }
        }
    }
    out
}

fn plain_dots<const N: usize>(format: Format, row: &[u8], x: [&[f32]; N]) -> [f32; N] {
    let mut out = [0.0; N];
    let mut values = [0.0f32; 256];
    for (i, part) in row.chunks(256 * format.block_bytes()).enumerate() {
        let n = part.len() / format.block_bytes();
        let values = &mut values[..n];
        format.dequantize(part, values);
        for (x, out) in x.iter().zip(&mut out) {
            let x = &x[256 * i..][..n];
            *out += sum_in_lanes(n, |i| values[i] * x[i]);
        }
    }
    for x in x {
        assert_eq!(
            format.row_bytes(x.len()),
            Some(row.len()),
            "the activations and the row differ in length"
        );
    }
    out
}

fn add_row(format: Format, h: f32, row: &[u8], y: &mut [f32]) {
    assert_eq!(format.row_bytes(y.len()), Some(row.len()), "y and the row differ in length");
    let mut values = [0.0f32; 256];
    let part_bytes = 256 / format.block_values() * format.block_bytes();
    for (row, y) in row.chunks(part_bytes).zip(y.chunks_mut(256)) {
        let values = &mut values[..y.len()];
        format.dequantize(row, values);
        for (y, value) in y.iter_mut().zip(values) {
            *y += h * *value;
        }
    }
}

fn transposed(layout: &TransposedLayout, bytes: &[u8], list: &[(u32, f32)], y: &mut [f32]) {
    assert_eq!(y.len(), layout.n_out);
    let Some(quants) = layout.format.quants() else {
        for &(slot, h) in list {
            let row = &bytes[..layout.groups_at][slot as usize * layout.row_bytes..];
            add_row(layout.format, h, &row[..layout.row_bytes], y);
        }
        return;
    };
    for_runs(layout, bytes, list, |run| {
        for_units(
            y,
            |unit, y: &mut [f32; UNIT]| add_unit(quants.code, quants.wide_scales, run, unit, y),
            |unit, y| add_unit(quants.code, quants.wide_scales, run, unit, y),
        );
    });
}

fn add_unit(code: Code, wide_scales: bool, run: &NeuronRun<'_>, unit: usize, y: &mut [f32; UNIT]) {
    let mut sums = [0.0f32; UNIT];
    for &(slot, h) in run.list {
        match code {
            Code::Byte => {
                for (sum, &byte) in sums.iter_mut().zip(run.codes(slot, unit * UNIT, UNIT)) {
                    *sum += h * f32::from(byte as i8);
                }
            }
            Code::Nibble { offset } => {
                let (low, high) = sums.split_at_mut(UNIT / 2);
                let pairs = run.codes(slot, unit * UNIT / 2, UNIT / 2);
                for ((low, high), &pair) in low.iter_mut().zip(high).zip(pairs) {
                    *low += h * f32::from((pair & 15) as i8 - offset);
                    *high += h * f32::from((pair >> 4) as i8 - offset);
                }
            }
        }
    }
    let entry = |table: &[u8], e: usize| {
        if wide_scales {
            f32::from_le_bytes(table[4 * e..4 * e + 4].try_into().expect("the slice has 4 bytes"))
        } else {
            f16::from_le_bytes([table[2 * e], table[2 * e + 1]]).to_f32()
        }
    };
    for (i, (y, sum)) in y.iter_mut().zip(sums).enumerate() {
        *y += entry(run.scales, unit * UNIT + i) * sum;
        if !run.mins.is_empty() {
            *y -= entry(run.mins, unit * UNIT + i) * run.total;
        }
    }
}
