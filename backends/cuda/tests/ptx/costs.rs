//! What the kernels that take most of a token's time execute for a byte of weights, compared with
//! `costs.txt`: a figure that gets worse fails.
//!
//! A figure that gets better fails too, until the table has it. Otherwise a later change could lose
//! what an earlier one gained, and no test would see it; and the table in a commit shows what it
//! changed.

mod runs;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::sync::PoisonError;
use std::time::Instant;

use hal::format::Format;
use ptx::Launch;

use crate::{ALL, SHARED, device, interpreter};
use runs::{Measured, Runs};

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ptx/costs.txt");

/// Set to any value: the test writes the table in place of comparing it.
const WRITE: &str = "THERMOCLINE_WRITE_COSTS";

/// The device: the test of all cases has it too.
const COUNTED: usize = ALL[0];

/// A figure within this share of the table's is the same. What a figure is rounded to in the table
/// comes on top.
const TOLERANCE: f64 = 0.01;

const WEIGHTS: [Format; 5] = [Format::F16, Format::Q4_0, Format::Q4_K, Format::Q6_K, Format::Q8_0];
const CACHES: [Format; 3] = [Format::F16, Format::Q8_0, Format::Q4_0];

/// A column of the table.
struct Column {
    name: &'static str,
    /// What it is called in a message.
    what: &'static str,
    decimals: usize,
    better: Better,
}

/// Which figure is better.
#[derive(Clone, Copy, PartialEq)]
enum Better {
    Less,
    More,
    /// Neither: a change needs a look.
    Neither,
}

const COLUMNS: [Column; 8] = [
    Column { name: "threads", what: "threads per block", decimals: 0, better: Better::Neither },
    Column {
        name: "instructions",
        what: "instructions per weight byte",
        decimals: 2,
        better: Better::Less,
    },
    Column {
        name: "loaded",
        what: "bytes of weights loaded per weight byte",
        decimals: 2,
        better: Better::Less,
    },
    Column {
        name: "by16",
        what: "per cent of the weights' bytes by 16-byte loads",
        decimals: 0,
        better: Better::More,
    },
    Column {
        name: "by8",
        what: "per cent of the weights' bytes by loads of 8 or 16 bytes",
        decimals: 0,
        better: Better::More,
    },
    Column {
        name: "in_flight",
        what: "bytes of loads of a thread before the first use",
        decimals: 0,
        better: Better::More,
    },
    Column { name: "barriers", what: "barriers of a warp", decimals: 1, better: Better::Less },
    Column { name: "fences", what: "fences of a warp", decimals: 1, better: Better::Less },
];

type Figures = [f64; COLUMNS.len()];

const HEAD: &str = "\
# What a kernel executes, counted by the interpreter of the built-in PTX at one shape (costs/runs.rs).
#   threads       per block, as launched
#   instructions  PTX instructions of a thread (32 for each of a warp) per byte of weights, or of keys and values;
#                 a file's bytes, each once, whatever the number of tokens
#   loaded        bytes of weights that threads load per byte of weights
#   by16, by8     per cent of these bytes by loads of 16 bytes, and of 8 or 16
#   in_flight     the most bytes that a thread loads from global memory before it uses any of them, by the order of the
#                 PTX; NVIDIA's assembler may move loads
#   barriers, fences   of a warp
# The test `costs` compares; it says how to write this file.
";

/// Parameters that are weights, or keys and values.
fn weights_of(kernel: &str) -> &'static [usize] {
    match kernel {
        "matmul_three" => &[0, 1, 2],
        "ffn_one" | "ffn_few" => &[0, 1],
        // The last three are the scales of a transposed matrix.
        "down_one" | "down_few" | "down_many" => &[0, 2, 3, 4],
        _ if kernel.starts_with("attention") => &[1, 2],
        _ => &[0],
    }
}

fn figures(Measured { launch, bytes }: &Measured) -> Figures {
    let (counts, bytes) = (&launch.counts, *bytes as f64);
    let loaded = counts.loaded_from(weights_of(&launch.kernel)).map(|n| n as f64);
    let all: f64 = loaded.iter().sum();
    let per_warp = |n: u64| n as f64 / counts.warps as f64;
    let share = |from: usize| 100.0 * loaded[from..].iter().sum::<f64>() / all;
    [
        f64::from(launch.threads),
        32.0 * counts.instructions as f64 / bytes,
        all / bytes,
        share(4),
        share(3),
        launch.in_flight as f64,
        per_warp(counts.barriers),
        per_warp(counts.fences),
    ]
}

/// `matmul_few.q4_0 matmul_one`, with the target of a unit that is compiled for two.
fn key(launch: &Launch) -> String {
    let unit = launch.unit.replace(" (sm_75)", "").replace(" (sm_80)", "@80");
    format!("{unit} {}", launch.kernel)
}

fn measure() -> Option<BTreeMap<String, Figures>> {
    let (fake, interpreter) = interpreter()?;
    let _alone = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    fake.set(&format!("{COUNTED}:units=2"));
    let runs = Runs::new(device(COUNTED), interpreter, COUNTED as i32).expect("a queue");
    let weights = WEIGHTS.iter().flat_map(|&format| runs::of_weights(&runs, format));
    let caches = CACHES.iter().flat_map(|&format| runs::of_caches(&runs, format));
    let mut found = BTreeMap::new();
    for measured in weights.chain(caches).flat_map(|run| run.expect("the op runs")) {
        let key = key(&measured.launch);
        let other = found.insert(key.clone(), figures(&measured));
        assert!(other.is_none(), "{key} is measured twice");
    }
    let faults = interpreter.take_faults(COUNTED as i32);
    assert!(faults.is_empty(), "{faults:?}");
    Some(found)
}

fn table(rows: &BTreeMap<String, Figures>) -> String {
    let mut text = HEAD.to_owned();
    let _ = write!(text, "{:40}", "unit kernel");
    COLUMNS.iter().for_each(|column| {
        let _ = write!(text, " {:>8}", column.name);
    });
    for (key, figures) in rows {
        let _ = write!(text, "\n{key:40}");
        for (column, figure) in COLUMNS.iter().zip(figures) {
            let _ = write!(
                text,
                " {figure:width$.n$}",
                n = column.decimals,
                width = column.name.len().max(8)
            );
        }
    }
    text + "\n"
}

/// The rows of a table's text.
fn parse(text: &str) -> BTreeMap<String, Figures> {
    let lines = text.lines().filter(|line| !line.starts_with('#')).skip(1);
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words.len(), 2 + COLUMNS.len(), "{TABLE}: {line}");
        let number = |at: usize| words[2 + at].parse().expect("a number");
        (format!("{} {}", words[0], words[1]), std::array::from_fn(number))
    };
    lines.map(row).collect()
}

/// Differences between what was measured and the table, in words.
fn differences(
    found: &BTreeMap<String, Figures>,
    table: &BTreeMap<String, Figures>,
) -> Vec<String> {
    let mut all = Vec::new();
    for (key, now) in found {
        let Some(before) = table.get(key) else {
            all.push(format!("{key}: not in the table"));
            continue;
        };
        for (column, (&now, &before)) in COLUMNS.iter().zip(now.iter().zip(before)) {
            let rounding = 0.5 * 0.1_f64.powi(column.decimals as i32);
            if (now - before).abs() <= rounding + TOLERANCE * before.abs() {
                continue;
            }
            let n = column.decimals;
            let better = if now < before { Better::Less } else { Better::More };
            let word = match column.better {
                Better::Neither => "changed",
                Better::Less | Better::More if column.better == better => "better",
                Better::Less | Better::More => "WORSE",
            };
            all.push(format!(
                "{key}: {word}: {now:.n$} {}; the table has {before:.n$}",
                column.what
            ));
        }
    }
    let gone = table.keys().filter(|&key| !found.contains_key(key));
    all.extend(gone.map(|key| format!("{key}: in the table, but no run launches it")));
    all
}

#[test]
#[allow(clippy::disallowed_methods, reason = "whoever runs the test asks for the table this way")]
fn costs() {
    let started = Instant::now();
    let Some(found) = measure() else { return };
    eprintln!("{} kernels in {:.1} s", found.len(), started.elapsed().as_secs_f64());
    if std::env::var_os(WRITE).is_some() {
        return fs::write(TABLE, table(&found)).expect("the table can be written");
    }
    let before = fs::read_to_string(TABLE).expect("the table");
    let all = differences(&found, &parse(&before));
    assert!(
        all.is_empty(),
        "{}\nThis is what the built-in PTX executes (backends/cuda/tests/ptx/costs.rs). Undo what is worse. If it must be, \
         or if all is better, write the table and commit it:\n    {WRITE}=1 cargo test -p thermocline-cuda --test ptx costs",
        all.join("\n")
    );
}

#[test]
fn the_comparison_sees_both_directions() {
    let row = |instructions: f64, wide: f64| {
        BTreeMap::from([(
            "few.q4_0 one".to_owned(),
            [128.0, instructions, 1.0, wide, 100.0, 160.0, 0.0, 0.0],
        )])
    };
    let table = parse(&table(&row(4.0, 89.0)));
    assert_eq!(differences(&row(4.004, 89.4), &table), Vec::<String>::new());
    let worse = differences(&row(4.1, 44.0), &table).join("\n");
    assert!(
        worse.contains("WORSE: 4.10 instructions per weight byte; the table has 4.00"),
        "{worse}"
    );
    assert!(worse.contains("WORSE: 44 per cent"), "{worse}");
    let better = differences(&row(3.9, 89.0), &table);
    assert!(better.len() == 1 && better[0].contains("better"), "{better:?}");
    assert_eq!(differences(&BTreeMap::new(), &table).len(), 1);
    assert_eq!(differences(&row(4.0, 89.0), &BTreeMap::new()).len(), 1);
}
