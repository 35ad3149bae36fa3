//! Tests of the shim: errors that it must detect, and kernels that must work in every order of
//! lanes, for waves of 32 and of 64 lanes.

use thermocline_fakes::Vendor;

use super::device::{Arg, Device, LAUNCH_FAILED, open};

const FAULTS: &str = "shim_faults";
const WORDS: &str = "shim_words";
const SEEDS: std::ops::Range<u64> = 0..12;

/// The devices of both vendors, with their wave sizes. CUDA's waves (warps) have 32 lanes; for the
/// fake HIP the size is a setting of the process, here 64.
fn devices(ordinal: i32) -> Vec<(Device, u32)> {
    let cuda = open(Vendor::Cuda, ordinal).map(|device| (device, 32));
    let hip = open(Vendor::Hip, ordinal).map(|device| {
        device.fake.set("wave=64");
        (device, 64)
    });
    cuda.into_iter().chain(hip).collect()
}

#[test]
fn divergence_is_found() {
    let faults = [
        "barrier_in_a_branch",
        "barriers_in_both_branches",
        "shuffle_in_half_a_wave",
        "shuffle_after_lanes_returned",
        "shuffles_in_both_branches",
    ];
    for (device, _) in devices(1) {
        for name in faults {
            for seed in SEEDS {
                device.fake.set(&format!("1:reset=1 1:seed={seed}"));
                let x = device.alloc(256);
                let code = device.run((FAULTS, name), 2, 256, 0, &[Arg::At(x)]);
                assert_eq!(code, LAUNCH_FAILED, "{name}, seed {seed}");
            }
        }
    }
}

#[test]
fn writes_past_the_end_of_shared_memory_are_found() {
    for (device, _) in devices(2) {
        let run = |name: &str, shared: u32, rest: &[Arg]| {
            device.fake.set("2:reset=1");
            let args = [&[Arg::At(device.alloc(256))], rest].concat();
            device.run((FAULTS, name), 1, 256, shared, &args)
        };
        assert_eq!(run("past_a_shared_array", 0, &[]), LAUNCH_FAILED);
        assert_eq!(run("past_dynamic_memory", 64, &[Arg::Word(15)]), 0);
        assert_eq!(run("past_dynamic_memory", 64, &[Arg::Word(16)]), LAUNCH_FAILED);
        assert_eq!(run("too_much_shared", 0, &[]), LAUNCH_FAILED);
    }
}

#[test]
fn a_missing_barrier_shows_in_shuffled_orders() {
    for (device, _) in devices(3) {
        let mut n_wrong = 0;
        for seed in 1..=20 {
            device.fake.set(&format!("3:seed={seed}"));
            let x = device.alloc(256);
            assert_eq!(device.run((FAULTS, "missing_barrier"), 1, 256, 0, &[Arg::At(x)]), 0);
            let right: Vec<u32> = (0..256).map(|i| (i + 1) % 256).collect();
            n_wrong += u32::from(device.read(x, 256) != right);
        }
        assert!(n_wrong >= 19, "{n_wrong} of 20");
    }
}

#[test]
fn wave_operations_do_not_depend_on_the_order_of_lanes() {
    for (device, wave) in devices(4) {
        for seed in SEEDS {
            device.fake.set(&format!("4:seed={seed}"));
            let x = device.alloc(192 * 8);
            assert_eq!(device.run((WORDS, "words_of_waves"), 1, 192, 0, &[Arg::At(x)]), 0);
            let got = device.read(x, 192 * 8);
            for t in 0..192u32 {
                let (lane, base) = (t % wave, t / wave * wave);
                let down = if lane + 7 < wave { t + 7 } else { t };
                let odd = if wave == 32 { [0xaaaa_aaaa, 0] } else { [0xaaaa_aaaa; 2] };
                let want = [lane, (base + 5) * 3, t ^ 3, down, odd[0], odd[1], 1, 191 * 192 / 2];
                assert_eq!(got[t as usize * 8..][..8], want, "thread {t}, seed {seed}");
            }
        }
    }
}

#[test]
fn shared_memory_begins_as_nan_in_every_block() {
    for (device, _) in devices(4) {
        let x = device.alloc(5);
        let args = [Arg::At(x), Arg::Word(12)];
        assert_eq!(device.run((WORDS, "fresh_memory"), 5, 64, 48, &args), 0);
        assert_eq!(device.read(x, 5), [64 + 12; 5]);
    }
}

fn random_words(n: usize, seed: u32) -> Vec<u32> {
    let mut state = (u64::from(seed) << 20) | 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    (0..n).map(|_| next()).collect()
}

#[test]
fn byte_matrix_products_match_naive_sums() {
    let byte = |words: &[u32], i: usize| i32::from((words[i / 4] >> (i % 4 * 8)) as i8);
    for (device, _) in devices(4) {
        for seed in 1..=8 {
            let (a, b, d) = (
                random_words(16 * 8, seed),
                random_words(8 * 8, seed + 100),
                random_words(16 * 8, seed + 200),
            );
            let at = [device.buffer(&a), device.buffer(&b), device.buffer(&d)];
            let args = at.map(Arg::At);
            assert_eq!(device.run((WORDS, "small_product"), 1, 128, 0, &args), 0);
            let got = device.read(at[2], 16 * 8);
            for (i, got) in got.iter().enumerate() {
                let (row, column) = (i / 8, i % 8);
                let dot: i32 =
                    (0..32).map(|k| byte(&a, row * 32 + k) * byte(&b, column * 32 + k)).sum();
                assert_eq!(*got, d[i].wrapping_add(dot as u32), "row {row}, column {column}");
            }
        }
    }
}

#[test]
fn two_words_are_loaded_at_once() {
    for (device, _) in devices(4) {
        let words = random_words(6, 5);
        let at = [device.buffer(&words), device.alloc(6)];
        assert_eq!(device.run((WORDS, "load_both"), 3, 64, 0, &at.map(Arg::At)), 0);
        assert_eq!(device.read(at[1], 6), words);
    }
}

#[test]
fn nibbles_are_looked_up() {
    let byte = |words: &[u32], i: usize| words[i / 4] >> (i % 4 * 8) & 0xff;
    for (device, _) in devices(4) {
        let (table, places) = (random_words(4, 1), random_words(256, 2));
        let at = [device.buffer(&table), device.buffer(&places), device.alloc(512)];
        assert_eq!(device.run((WORDS, "look_up"), 1, 256, 0, &at.map(Arg::At)), 0);
        let got = device.read(at[2], 512);
        for (i, both) in (0..1024).map(|i| (i, byte(&places, i))) {
            let word = |upper: usize| byte(&got[2 * (i / 4) + upper..], i % 4);
            let want = [both & 15, both >> 4].map(|place| byte(&table, place as usize));
            assert_eq!([word(0), word(1)], want, "byte {i}, {both:#x}");
        }
    }
}

#[test]
fn float_matrix_products_use_10_mantissa_bits() {
    // Magnitudes from 1 to 2, with full mantissas.
    let floats = |n: usize, seed: u32| -> Vec<u32> {
        random_words(n, seed).iter().map(|word| word & 0x807f_ffff | 0x3f80_0000).collect()
    };
    let cut = |word: u32| f64::from(f32::from_bits(word & 0xffff_e000));
    for (device, _) in devices(5) {
        for seed in 1..=8 {
            let (a, b) = (floats(16 * 8, seed), floats(8 * 8, seed + 100));
            let d = floats(16 * 8, seed + 200);
            let at = [device.buffer(&a), device.buffer(&b), device.buffer(&d)];
            let args = at.map(Arg::At);
            assert_eq!(device.run((WORDS, "small_product_of_floats"), 1, 128, 0, &args), 0);
            let got = device.read(at[2], 16 * 8);
            for (i, got) in got.iter().enumerate() {
                let (row, column) = (i / 8, i % 8);
                let dot: f64 = (0..8).map(|k| cut(a[row * 8 + k]) * cut(b[column * 8 + k])).sum();
                let want = f64::from(f32::from_bits(d[i])) + dot;
                let error = (f64::from(f32::from_bits(*got)) - want).abs();
                assert!(error < 1e-4, "row {row}, column {column}: {error:e}");
            }
        }
    }
}

/// The nearest f16, ties to even, found by a search: positive f16 values are in the order of their
/// bits.
fn nearest_half(v: f32) -> u32 {
    let value = |h: u32| {
        let (exponent, fraction) = (h >> 10, f64::from(h & 0x3ff));
        match exponent {
            0 => fraction * 2f64.powi(-24),
            // Infinity counts as the number after the largest finite one.
            _ => (1024.0 + fraction) * 2f64.powi(exponent as i32 - 25),
        }
    };
    let size = f64::from(v.abs());
    let above = (0..=0x7c00u32).collect::<Vec<_>>().partition_point(|h| value(*h) < size) as u32;
    let half = match above {
        0 => 0,
        above if above > 0x7c00 => 0x7c00,
        above => {
            let (low, high) = (size - value(above - 1), value(above) - size);
            let even = above - above % 2;
            if low < high {
                above - 1
            } else if high < low {
                above
            } else {
                even
            }
        }
    };
    half | ((v.to_bits() >> 16) & 0x8000)
}

#[test]
fn halves_are_rounded_to_the_nearest() {
    let mut floats: Vec<u32> = random_words(1500, 7);
    // Values near the smallest and the largest f16, and ties.
    floats.extend((0..600u32).map(|i| 0x3300_0000 + i * 0x0001_1111));
    floats.extend((0..400u32).map(|i| (0x477f_e000 + i * 17) | ((i % 2) << 31)));
    floats.extend((0..400u32).map(|i| (0x3880_1000 + i * 0x2000) | ((i % 2) << 31)));
    floats.retain(|bits| !f32::from_bits(*bits).is_nan());
    let halves: Vec<u32> = floats.iter().map(|bits| nearest_half(f32::from_bits(*bits))).collect();
    for (device, _) in devices(4) {
        let [floats_at, halves_at, wrong] =
            [&floats, &halves, &vec![0; 2]].map(|words| device.buffer(words));
        let args = [
            Arg::At(floats_at),
            Arg::At(halves_at),
            Arg::Word(floats.len() as u32),
            Arg::At(wrong),
        ];
        assert_eq!(device.run((WORDS, "halves"), 256, 256, 0, &args), 0);
        assert_eq!(device.read(wrong, 2), [0, 0]);
    }
}

#[test]
fn atomics_lose_nothing() {
    for (device, _) in devices(4) {
        let x = device.buffer(&[0; 3]);
        assert_eq!(device.run((WORDS, "atomics"), 7, 128, 0, &[Arg::At(x)]), 0);
        assert_eq!(device.read(x, 3), [7 * 128, u32::MAX, 7 * 128 - 1]);
    }
}

#[test]
fn every_block_of_three_dimensions_runs_once() {
    for (device, _) in devices(4) {
        let n = 3 * 5 * 2 * 64 - 10;
        let x = device.buffer(&vec![1f32.to_bits(); n + 20]);
        let scale = device.function(WORDS, "scale");
        let args = [Arg::At(x), Arg::Float(0.5), Arg::Word(n as u32)];
        assert_eq!(device.start(scale, [3, 5, 2], 64, 0, &args), 0);
        let got: Vec<f32> = device.read(x, n + 20).into_iter().map(f32::from_bits).collect();
        let want = |i: usize| if i < n { 0.5 + i as f32 } else { 1.0 };
        assert!(got.iter().enumerate().all(|(i, got)| *got == want(i)));
    }
}

#[test]
fn invalid_launch_sizes_are_errors() {
    for (device, _) in devices(5) {
        let scale = device.function(WORDS, "scale");
        let x = device.alloc(64);
        let args = [Arg::At(x), Arg::Float(0.5), Arg::Word(64)];
        for (grid, block) in
            [([0, 1, 1], 64), ([1, 1, 1], 0), ([1, 1, 1], 2048), ([1, 70000, 1], 64)]
        {
            assert_ne!(device.start(scale, grid, block, 0, &args), 0, "{grid:?} of {block}");
        }
        assert_ne!(device.start(scale, [1, 1, 1], 64, 1 << 20, &args), 0);
        assert_eq!(device.finish(), 0, "an invalid launch does not lose the device");
    }
}
