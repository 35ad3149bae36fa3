//! The launches of a token, as the fake drivers see them.

use super::*;

/// A launch: its kernel, and the blocks in the first dimension of its grid.
type Launch = (String, u32);

/// The launches of the last token that `bench` generates with a synthetic model of this shape.
fn launches(vendor: Vendor, shape: &str, more: &[&str]) -> Vec<Launch> {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let backend = if vendor == Vendor::Cuda { "cuda" } else { "hip" };
    let args = ["bench", "--synthetic", shape, "-p", "0", "-n", "1", "-r", "1", "-o", "json"];
    let args = [&args[..], &["--no-warmup", "--backend", backend], more].concat();
    let settings = format!("log={}", log.display());
    let output = run(&args, fakes::library_folder(), &[(vendor.variable(), &settings)]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let log = std::fs::read_to_string(log).unwrap();
    let launch = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next().unwrap().to_owned();
        (name, words.next().unwrap().parse().unwrap())
    };
    let all: Vec<Launch> = log.lines().map(launch).collect();
    let last = all.iter().rposition(|(kernel, _)| kernel == "get_rows").unwrap();
    all[last..].to_vec()
}

/// The launches of one of the inner layers of a model with layers of one kind; `ffn` are the number of
/// its neurons, its heads and experts, and its format and activation.
fn of_a_layer(vendor: Vendor, ffn: &str, more: &[&str]) -> Vec<Launch> {
    let [two, five] = [2, 5].map(|n| launches(vendor, &format!("512x{n}x{ffn}"), more));
    let (n, rest) = ((five.len() - two.len()) / 3, (five.len() - two.len()) % 3);
    assert_eq!(rest, 0, "{two:?} {five:?}");
    // Behind the embedding and the first layer.
    five[1 + n..][..n].to_vec()
}

fn names(launches: &[Launch]) -> Vec<&str> {
    launches.iter().map(|(kernel, _)| kernel.as_str()).collect()
}

#[test]
fn the_launches_per_layer_are_pinned() {
    if !fakes_available() {
        return;
    }
    let attention =
        ["norm_wide", "matmul_three", "rope_store", "attention_2", "attention_merge", "matmul_one"];
    let whole = ["-ngl", "all"];
    for vendor in [Vendor::Cuda, Vendor::Hip] {
        let experts = ["norm_wide", "matmul_one", "route", "ffn_one", "across_one", "ffn_reduce"];
        for (spec, ffn) in [
            ("1024x8/4:Q4_0:silu", &["norm_wide", "ffn_one", "matmul_one"][..]),
            ("1024x8/4:F16:silu", &["norm_wide", "ffn_one", "matmul_one"]),
            ("1024x8/4:Q4_0:relu", &["norm_wide", "ffn_one", "down_one", "ffn_reduce"]),
            ("256x8/4*8/2:Q4_0:silu", &experts),
        ] {
            let layer = of_a_layer(vendor, spec, &whole);
            assert_eq!(names(&layer), [&attention[..], ffn].concat(), "{vendor:?} {spec}");
        }
    }
}

/// Short launches have further blocks, which bring the next matrix into the L2 cache.
#[test]
fn short_launches_prefetch_the_next_weight() {
    if !fakes_available() {
        return;
    }
    let blocks = |more: &[&str]| -> Vec<u32> {
        let layer =
            of_a_layer(Vendor::Cuda, "1024x8/4:Q4_0:silu", &[&["-ngl", "all"], more].concat());
        let short = ["norm_wide", "rope_store", "attention_merge"];
        let short = layer.iter().filter(|(kernel, _)| short.contains(&kernel.as_str()));
        short.map(|(_, blocks)| *blocks).collect()
    };
    // The first norm, the heads of queries and keys, the heads of queries, the second norm.
    assert_eq!(blocks(&["--device-options", "prefetch=off"]), [1, 12, 8, 1]);
    // Q, the output projection and the gate have 1152, 1152 and 2304 lines of 128 bytes, and the
    // fake's memory transfers 1500 in 3 us. Norms have 128 threads per block, the store 64. The merge
    // finds the whole projection prefetched by the store.
    assert_eq!(blocks(&[]), [1 + 9, 12 + 18, 8, 1 + 12]);
}
