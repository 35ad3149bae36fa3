//! Compares every format with test data that `scripts/check_formats` made with other programs.

use super::*;

/// A few blocks and their dequantised values.
fn fixture(format: Format) -> (&'static [u8], Vec<f32>) {
    let bytes: &[u8] = match format {
        Format::F32 | Format::U32 => return (&[], Vec::new()),
        Format::F16 => include_bytes!("fixtures/f16.bin"),
        Format::BF16 => include_bytes!("fixtures/bf16.bin"),
        Format::Q4_0 => include_bytes!("fixtures/q4_0.bin"),
        Format::Q4_1 => include_bytes!("fixtures/q4_1.bin"),
        Format::Q5_0 => include_bytes!("fixtures/q5_0.bin"),
        Format::Q5_1 => include_bytes!("fixtures/q5_1.bin"),
        Format::Q8_0 => include_bytes!("fixtures/q8_0.bin"),
        Format::Q2_K => include_bytes!("fixtures/q2_k.bin"),
        Format::Q3_K => include_bytes!("fixtures/q3_k.bin"),
        Format::Q4_K => include_bytes!("fixtures/q4_k.bin"),
        Format::Q5_K => include_bytes!("fixtures/q5_k.bin"),
        Format::Q6_K => include_bytes!("fixtures/q6_k.bin"),
        Format::IQ2_XXS => include_bytes!("fixtures/iq2_xxs.bin"),
        Format::IQ2_XS => include_bytes!("fixtures/iq2_xs.bin"),
        Format::IQ3_XXS => include_bytes!("fixtures/iq3_xxs.bin"),
        Format::IQ1_S => include_bytes!("fixtures/iq1_s.bin"),
        Format::IQ4_NL => include_bytes!("fixtures/iq4_nl.bin"),
        Format::IQ3_S => include_bytes!("fixtures/iq3_s.bin"),
        Format::IQ2_S => include_bytes!("fixtures/iq2_s.bin"),
        Format::IQ4_XS => include_bytes!("fixtures/iq4_xs.bin"),
        Format::IQ1_M => include_bytes!("fixtures/iq1_m.bin"),
        Format::MXFP4 => include_bytes!("fixtures/mxfp4.bin"),
        Format::Q1_0 => include_bytes!("fixtures/q1_0.bin"),
    };
    let n_blocks = bytes.len() / (format.block_bytes() + 4 * format.block_values());
    let (blocks, values) = bytes.split_at(n_blocks * format.block_bytes());
    (blocks, floats(values))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.as_chunks().0.iter();
    words.map(|&word| primitive::f32::from_le_bytes(word)).collect()
}

fn assert_same_bits(format: Format, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len());
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let same = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
        assert!(same, "{format} value {i}: {got:e}, expected {expected:e}");
    }
}

#[test]
fn dequantised_values_have_the_reference_bits() {
    for &format in Format::ALL {
        let (blocks, expected) = fixture(format);
        let mut got = vec![f32::NAN; expected.len()];
        format.dequantize(blocks, &mut got);
        assert_same_bits(format, &got, &expected);
    }
}

/// The fixture accepts 2048 normally distributed values, then ggml's blocks of these values in each
/// format of the list.
#[test]
fn quantised_bytes_are_the_reference_bytes() {
    let bytes = include_bytes!("fixtures/quantized.bin");
    let (values, mut expected) = bytes.split_at(4 * 2048);
    let plain = [Format::F16, Format::BF16, Format::Q4_0, Format::Q4_1, Format::Q8_0];
    for format in plain.into_iter().chain([Format::Q5_0, Format::Q5_1, Format::MXFP4]) {
        let mut got = vec![0xA5; format.row_bytes(2048).unwrap()];
        format.quantize(&floats(values), &mut got);
        let (reference, rest) = expected.split_at(got.len());
        assert!(got == reference, "{format}");
        expected = rest;
    }
    assert!(expected.is_empty());
}

/// `k_errors.bin` accepts ggml's squared errors for the same values.
#[test]
fn searched_scales_are_as_good_as_the_reference() {
    let values = floats(&include_bytes!("fixtures/quantized.bin")[..4 * 2048]);
    let reference = floats(include_bytes!("fixtures/k_errors.bin"));
    for (format, reference) in [Format::Q4_K, Format::Q5_K, Format::Q6_K].into_iter().zip(reference)
    {
        let mut blocks = vec![0xA5; format.row_bytes(values.len()).unwrap()];
        format.quantize(&values, &mut blocks);
        let mut back = vec![f32::NAN; values.len()];
        format.dequantize(&blocks, &mut back);
        let error: f32 = back.iter().zip(&values).map(|(a, b)| (a - b).powi(2)).sum();
        assert!(error < 1.02 * reference, "{format}: {error}, reference {reference}");
    }
}

/// ggml's squared error for the values of the fixture is 0.026932; a search over scales reduces it by
/// a few per cent.
#[test]
fn cached_iq4_nl_is_as_good_as_the_reference() {
    let values = floats(&include_bytes!("fixtures/quantized.bin")[..4 * 2048]);
    let mut blocks = vec![0xA5; Format::IQ4_NL.row_bytes(values.len()).unwrap()];
    Format::IQ4_NL.quantize_cache(&values, &mut blocks);
    let mut back = vec![f32::NAN; values.len()];
    Format::IQ4_NL.dequantize(&blocks, &mut back);
    let error: f32 = back.iter().zip(&values).map(|(a, b)| (a - b).powi(2)).sum();
    assert!((error - 0.026_932).abs() < 1e-6, "{error}");
}

#[test]
fn every_format_of_the_cache_quantises_zeros_and_nan() {
    for &format in crate::op::KV_FORMATS {
        let n = 2 * format.block_values();
        let mut values = vec![0.0; n];
        let mut row = vec![0xA5; format.row_bytes(n).unwrap()];
        format.quantize_cache(&values, &mut row);
        let mut back = vec![f32::NAN; n];
        format.dequantize(&row, &mut back);
        assert_eq!(back, values, "{format}");
        // A NaN changes only its own block.
        values[0] = f32::NAN;
        values[n - 1] = -3.5;
        format.quantize_cache(&values, &mut row);
        format.dequantize(&row, &mut back);
        assert!((back[n - 1] + 3.5).abs() < 0.01, "{format}: {}", back[n - 1]);
    }
}

#[test]
fn errors_at_two_and_three_bits_are_near_the_optimum() {
    // Sums of twelve uniform values are nearly normal. For normal values the relative RMS error of
    // a uniform quantiser is at least 0.34 at two bits and 0.19 at three; scales per 16 values
    // reduce it a little.
    let mut next = random(3);
    let mut float = || (next() >> 8) as f32 / (1 << 16) as f32;
    let values: Vec<f32> = (0..64 * 256).map(|_| (0..12).map(|_| float()).sum::<f32>()).collect();
    let mean = values.iter().sum::<f32>() / values.len() as f32;
    let values: Vec<f32> = values.iter().map(|v| v - mean).collect();
    for (format, bound) in [(Format::Q2_K, 0.32), (Format::Q3_K, 0.19)] {
        let mut blocks = vec![0xA5; format.row_bytes(values.len()).unwrap()];
        format.quantize(&values, &mut blocks);
        let mut back = vec![f32::NAN; values.len()];
        format.dequantize(&blocks, &mut back);
        let square = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>();
        let error = square(&mut back.iter().zip(&values).map(|(a, b)| a - b));
        let relative = (error / square(&mut values.iter().copied())).sqrt();
        assert!(relative < bound, "{format}: error {relative}, bound {bound}");
    }
}

/// Errors on normal values are bounded, and an importance matrix moves them to the other columns.
/// Q4_K and Q5_K have too few blocks here: the rounding of their scales decides.
#[test]
fn important_columns_get_smaller_errors() {
    let values = floats(&include_bytes!("fixtures/quantized.bin")[..4 * 2048]);
    let columns: Vec<f32> =
        (0..values.len()).map(|i| if i % 8 == 0 { 400.0 } else { 1.0 }).collect();
    let error = |format: Format, columns: Option<&[f32]>| {
        let mut blocks = vec![0xA5; format.row_bytes(values.len()).unwrap()];
        match columns {
            Some(columns) => format.quantize_row(&values, columns, &mut blocks),
            None => format.quantize(&values, &mut blocks),
        }
        let mut back = vec![f32::NAN; values.len()];
        format.dequantize(&blocks, &mut back);
        let mut sums = (0.0f32, 0.0f32);
        for (i, (a, b)) in back.iter().zip(&values).enumerate() {
            let sum = if i % 8 == 0 { &mut sums.0 } else { &mut sums.1 };
            *sum += (a - b).powi(2);
        }
        sums
    };
    let total: f32 = values.iter().map(|v| v * v).sum();
    use Format::*;
    for (format, bound) in [(Q2_K, 0.10), (Q3_K, 0.035), (IQ4_XS, 0.0080), (IQ4_NL, 0.0080)] {
        let (important, others) = error(format, None);
        let relative = (important + others) / total;
        assert!(relative < bound, "{format}: {relative}, bound {bound}");
    }
    for format in [Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q6_K, IQ4_NL, IQ4_XS] {
        let (plain, _) = error(format, None);
        let (weighted, others) = error(format, Some(&columns));
        assert!(weighted < plain && others > weighted, "{format}: {weighted}, without {plain}");
    }
    assert_eq!(error(Q8_0, Some(&columns)), error(Q8_0, None));
}

#[test]
fn quantising_accepts_nan_and_infinity() {
    for &format in Format::ALL.iter().filter(|format| format.quantizes()) {
        let n = format.block_values();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-45, 0.0] {
            let mut block = vec![0xA5; format.block_bytes()];
            format.quantize(&vec![bad; n], &mut block);
            let mut mixed = vec![1.0; n];
            mixed[n / 2] = bad;
            format.quantize(&mixed, &mut block);
            for columns in [vec![0.0; n], vec![1.0; n], mixed.iter().map(|v| v.abs()).collect()] {
                format.quantize_row(&mixed, &columns, &mut block);
            }
            let zeros = vec![0.0; n];
            format.quantize(&zeros, &mut block);
            let mut back = vec![f32::NAN; n];
            format.dequantize(&block, &mut back);
            assert_eq!(back, zeros, "{format}");
        }
    }
}

#[test]
fn names_and_gguf_ids_round_trip() {
    for &format in Format::ALL {
        assert_eq!(format.name().to_lowercase().parse(), Ok(format));
        assert_eq!(
            format.gguf_id().and_then(Format::from_gguf_id),
            format.gguf_id().map(|_| format)
        );
        assert_eq!(format.is_weight(), format != Format::U32);
        assert_eq!(format.row_bytes(512), Some(512 / format.block_values() * format.block_bytes()));
        assert_eq!(format.row_bytes(511).is_some(), format.block_values() == 1);
        let too_many = format.row_bytes(usize::MAX - 511);
        assert_eq!(too_many.is_none(), format.block_bytes() > format.block_values());
    }
    assert_eq!(Format::from_gguf_id(4), None);
    assert_eq!("Q4_2".parse::<Format>(), Err(UnknownFormat { name: "Q4_2".to_owned() }));
}

#[test]
fn activations_round_as_defined() {
    let mut row = Q8Row::default();
    let x: Vec<f32> = (0..40).map(|i| (i as f32 - 20.0) * 0.37).collect();
    row.quantize_into(&x);
    assert_eq!((row.q.len(), row.d.len(), row.sum.len()), (64, 2, 2));
    assert_eq!(row.d[0], 20.0 * 0.37 / 127.0);
    assert_eq!((row.q[0], row.q[20]), (-127, 0));
    assert_eq!(row.q[40..], [0; 24]);
    for (block, sum) in row.q.chunks(32).zip(&row.sum) {
        assert_eq!(block.iter().map(|&q| i32::from(q)).sum::<i32>(), *sum);
    }
    for (i, x) in x.iter().enumerate() {
        assert!((row.d[i / 32] * f32::from(row.q[i]) - x).abs() <= row.d[i / 32] * 0.5001);
    }
    // Multiples of half a step are ties, which round to the even code.
    let mut x = [0.0f32; 32];
    (x[0], x[1], x[2], x[3]) = (127.0, 0.5, 1.5, -0.5);
    row.quantize_into(&x);
    assert_eq!(row.q[..4], [127, 0, 2, 0]);
}

#[test]
fn activations_without_a_normal_scale_are_zero_or_nan() {
    let mut row = Q8Row::default();
    for (value, d) in
        [(0.0, Some(0.0)), (1e-38, Some(0.0)), (f32::NAN, None), (f32::INFINITY, None)]
    {
        let mut x = [1e-40f32; 33];
        x[7] = value;
        row.quantize_into(&x);
        assert_eq!((&row.q[..], &row.sum[..], row.d[1]), (&[0; 64][..], &[0, 0][..], 0.0));
        assert!(d.map_or(row.d[0].is_nan(), |d| row.d[0] == d), "{value}: {}", row.d[0]);
    }
    row.quantize_into(&[f32::MAX, -f32::MAX, f32::MIN_POSITIVE]);
    assert_eq!((row.q[0], row.q[1], row.q[2]), (127, -127, 0));
    row.quantize_into(&[]);
    assert_eq!(row, Q8Row::default());
}

#[test]
#[should_panic(expected = "IQ2_XS is read-only")]
fn quantising_to_a_read_only_format_panics() {
    Format::IQ2_XS.quantize(&[0.0; 256], &mut [0; 74]);
}

#[test]
fn mxfp4_takes_the_nearest_code_and_on_a_tie_the_smaller() {
    let mut values = [0.0f32; 32];
    values[..12]
        .copy_from_slice(&[4.0, -4.0, 0.25, -0.25, 0.26, -0.26, 1.7, 2.5, 2.51, 6.9, 0.75, -3.49]);
    let mut block = [0xA5; 17];
    Format::MXFP4.quantize(&values[..], &mut block);
    let mut back = [f32::NAN; 32];
    Format::MXFP4.dequantize(&block, &mut back);
    // The largest value, 6.9, has exponent 2, so the codes 0, 1, 2, 3, 4, 6, 8, 12 count halves.
    let expected = [4.0, -4.0, 0.0, 0.0, 0.5, -0.5, 1.5, 2.0, 3.0, 6.0, 0.5, -3.0];
    assert_eq!((block[0], &back[..12], &back[12..]), (127, &expected[..], &[0.0; 20][..]));
}

/// Pseudo-random 24-bit numbers.
fn random(seed: u32) -> impl FnMut() -> u32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    }
}

/// Any bytes from a file dequantise without a panic, though not always to finite values.
#[test]
fn dequantising_accepts_any_bytes() {
    let mut next = random(3);
    for &format in Format::ALL {
        let (n, size) = (64 * format.block_values(), 64 * format.block_bytes());
        let mut values = vec![0.0; n];
        for fill in [Some(0), Some(0xFF), Some(0x7F), Some(0x80), None, None, None] {
            let bytes: Vec<u8> =
                (0..size).map(|_| fill.unwrap_or_else(|| (next() >> 16) as u8)).collect();
            format.dequantize(&bytes, &mut values);
            let finite = values.iter().filter(|v| v.is_finite()).count();
            assert!(fill.is_some() || finite > n / 2, "{format}: {finite} of {n}");
        }
    }
}

/// Pseudo-random values, or block bytes whose values are neither huge nor tiny.
fn random_matrix(format: Format, n_rows: usize, n_cols: usize, seed: u32) -> Vec<u8> {
    let mut next = random(seed);
    let mut bytes = vec![0; format.row_bytes(n_rows * n_cols).unwrap()];
    // Random bytes cover more bit patterns of these formats than quantised values do.
    const RANDOM: [Format; 4] = [Format::Q2_K, Format::Q3_K, Format::IQ4_NL, Format::IQ4_XS];
    if format.quantizes() && !RANDOM.contains(&format) {
        let value = |_| next() as f32 / (1 << 23) as f32 - 1.0;
        let values: Vec<f32> = (0..n_rows * n_cols).map(value).collect();
        format.quantize(&values, &mut bytes);
        return bytes;
    }
    let mut values: Vec<f32> = vec![0.0; format.block_values()];
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        while !values.iter().all(|v| v.abs() < 2.0) || !values.iter().any(|v| v.abs() > 0.05) {
            block.fill_with(|| (next() >> 16) as u8);
            format.dequantize(block, &mut values);
        }
        values.fill(0.0);
    }
    bytes
}

fn check_transposed(format: Format, n_ff: usize, n_out: usize, neurons: &[u32], n_slots: usize) {
    let source = random_matrix(format, n_out, n_ff, n_out as u32);
    let mut values = vec![f32::NAN; n_out * n_ff];
    format.dequantize(&source, &mut values);
    let layout = TransposedLayout::new(format, n_slots, n_ff, n_out).unwrap();
    assert!([layout.groups_at, layout.scales_at, layout.mins_at].iter().all(|at| at % 64 == 0));
    let mut packed = vec![0xA5; layout.n_bytes];
    layout.pack(&source, neurons, &mut packed).unwrap();
    let mut row = vec![f32::NAN; n_out];
    for (slot, &neuron) in neurons.iter().enumerate() {
        layout.row(&packed, slot, &mut row);
        let expected: Vec<f32> = (0..n_out).map(|e| values[e * n_ff + neuron as usize]).collect();
        assert_same_bits(format, &row, &expected);
    }
}

#[test]
fn a_transposed_matrix_has_the_same_values() {
    for &format in Format::ALL.iter().filter(|format| format.is_weight()) {
        for n_out in [1, 31, 32, 96, 130, 288] {
            // Several runs of neurons, the last one shorter.
            let n_ff = 9 * format.block_values().max(33) / if n_out > 96 { 3 } else { 1 };
            let n_ff = n_ff.next_multiple_of(format.block_values());
            let all: Vec<u32> = (0..n_ff as u32).collect();
            check_transposed(format, n_ff, n_out, &all, n_ff);
            let some: Vec<u32> = all.iter().copied().filter(|n| n % 7 == 3 || n % 5 == 1).collect();
            check_transposed(format, n_ff, n_out, &some, some.len() + 3);
            check_transposed(format, n_ff, n_out, &[n_ff as u32 - 1], 1);
            check_transposed(format, n_ff, n_out, &[], 2);
        }
    }
}

/// Stored packs contain these bytes: change `pack::PLAIN_LAYOUT` when they change.
#[test]
fn the_transposed_bytes_are_pinned() {
    let formats = Format::ALL.iter().filter(|format| format.is_weight());
    let found: Vec<String> = formats
        .map(|&format| {
            let (n_ff, n_out) = (512, 40);
            let source = random_matrix(format, n_out, n_ff, 5);
            let layout = TransposedLayout::new(format, 300, n_ff, n_out).unwrap();
            let neurons: Vec<u32> = (0..512).filter(|n| n % 2 == 1).collect();
            let mut packed = vec![0xA5; layout.n_bytes];
            layout.pack(&source, &neurons, &mut packed).unwrap();
            let hash = packed.iter().fold(0xCBF2_9CE4_8422_2325u64, |hash, &byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
            });
            format!("{format} {hash:016x}")
        })
        .collect();
    assert_eq!(crate::pack::PLAIN_LAYOUT, "plain/1");
    assert_eq!(found, PINNED);
}

const PINNED: [&str; 24] = [
    "F32 41efa3f21fc81477",
    "F16 6f1f22b9adf3fdd2",
    "BF16 e6e5326bd0ce9f1a",
    "Q4_0 45383df211cf65bd",
    "Q4_1 92d7a4fa75759b89",
    "Q5_0 5607ccfa68592058",
    "Q5_1 a820c74f2cd83556",
    "Q8_0 8b4967057289ef68",
    "Q2_K a5e8dade29185cad",
    "Q3_K 3d92fec571250050",
    "Q4_K 46f3ba7b0f5bef2a",
    "Q5_K dcaaafe656b8833f",
    "Q6_K 1edc918a809688f4",
    "IQ2_XXS df877e5e5660951f",
    "IQ2_XS e7db04f0a96b85f3",
    "IQ3_XXS 77d34ca030458d15",
    "IQ1_S e061479471fdd49e",
    "IQ4_NL 48a98f80efba47b1",
    "IQ3_S a3473295eb2444ac",
    "IQ2_S a364c17979f3a505",
    "IQ4_XS c03d958b7a0870e9",
    "IQ1_M c137ca4d4d44fe2e",
    "MXFP4 987a079e30f1afab",
    "Q1_0 f01e9122a5cd6537",
];

/// A buffer from a file may contain any bytes, and a wrong group number could index past the
/// tables.
#[test]
fn untrusted_buffers_are_checked_by_length_and_group_numbers() {
    for &format in Format::ALL.iter().filter(|format| format.is_weight()) {
        let (n_ff, n_out) = (512, 40);
        let neurons: Vec<u32> = (0..512).filter(|n| n % 3 == 1).collect();
        let layout = TransposedLayout::new(format, neurons.len(), n_ff, n_out).unwrap();
        let mut packed = vec![0xA5; layout.n_bytes];
        layout.pack(&random_matrix(format, n_out, n_ff, 9), &neurons, &mut packed).unwrap();
        assert!(layout.accepts(&neurons, &packed));
        assert!(!layout.accepts(&neurons, &packed[1..]) && !layout.accepts(&neurons[1..], &packed));
        let groups = layout.groups_at..layout.groups_at + 4 * neurons.len();
        for at in 0..packed.len() {
            packed[at] ^= 0x81;
            assert_eq!(layout.accepts(&neurons, &packed), !groups.contains(&at), "{format} {at}");
            packed[at] ^= 0x81;
        }
    }
}

#[test]
fn invalid_transpositions_are_errors() {
    let new = |n_slots, n_ff, n_out| TransposedLayout::new(Format::Q4_0, n_slots, n_ff, n_out);
    assert!(matches!(new(1, 33, 4), Err(TransposedError::Blocks { n_ff: 33, .. })));
    for (n_slots, n_ff, n_out) in
        [(usize::MAX, 32, 64), (1, usize::MAX - 31, 64), (1, 32, usize::MAX), (1, 1 << 40, 1 << 40)]
    {
        assert!(matches!(new(n_slots, n_ff, n_out), Err(TransposedError::TooLarge { .. })));
    }
    let layout = new(2, 64, 8).unwrap();
    let (source, mut out) = (vec![0; 8 * 36], vec![0; layout.n_bytes]);
    let mut pack = |source: &[u8], neurons: &[u32]| layout.pack(source, neurons, &mut out);
    assert_eq!(pack(&source, &[3, 63]), Ok(()));
    assert!(matches!(pack(&source[1..], &[3]), Err(TransposedError::Source { .. })));
    assert!(matches!(pack(&source, &[1, 2, 3]), Err(TransposedError::Slots { found: 3, .. })));
    for (neurons, neuron) in [([3, 3], 3), ([4, 2], 2), ([0, 64], 64)] {
        assert_eq!(pack(&source, &neurons), Err(TransposedError::Neuron { neuron, n_ff: 64 }));
    }
    let found = layout.pack(&source, &[], &mut [0; 5]);
    assert_eq!(found, Err(TransposedError::Target { expected: layout.n_bytes, found: 5 }));
}
