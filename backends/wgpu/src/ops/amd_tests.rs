//! What Mesa's compiler for AMD cards makes of the shaders, without a card: registers, waves, and
//! how lanes exchange values.
//!
//! The figures depend on Mesa's version. A change of them is a matter for a test only where it says
//! that a shader spills registers, that too few waves run at once to hide the latency of loads, or
//! that lanes exchange values one by one.

use std::process::Command;

use hal::format::Format;

use super::{attention, weights};
use crate::facts::{Facts, Tuning};
use crate::radv::{Code, NullDevice};
use crate::shader::{Source, has_sums};

/// Cards by the names that RADV takes: RDNA 2 and 3.
const CARDS: [&str; 2] = ["navi21", "gfx1100"];
/// Lanes of a subgroup over which sums are exchanged: the smallest size that RADV reports.
const LANES: u32 = 32;
/// Waves per SIMD that products for one token and attention need, as Mesa counts them: a wave of 64
/// lanes as two, up to 32.
const WAVES: u64 = 8;

/// The shaders that read the weights and the cache of a token, and those between them, as they
/// are on AMD cards.
fn shaders() -> Vec<(String, Source)> {
    let tuning = Tuning::of(0x1002, false);
    let limits = wgpu::Limits::default();
    let facts = Facts { limits, tuning, subgroup_size: Some(LANES), max_work: u64::MAX };
    let mut found = Vec::new();
    let mut add = |name: String, source: Source| {
        let subgroups = has_sums(source.name()).then_some(LANES);
        found.push((name, source.with_subgroups(subgroups)));
    };
    for format in Format::ALL.iter().copied().filter(|format| format.is_weight()) {
        for source in weights::products_of(format, [tuning.flat, tuning.row]) {
            add(format!("{} {format}", source.name()), source);
        }
    }
    for format in [Format::F16, Format::Q8_0, Format::Q4_0] {
        for d in [64, 128, 256] {
            let source = attention::tests::decode(format, d, &facts);
            add(format!("attention {format}, heads of {d}"), source);
        }
    }
    for name in ["add", "attention_merge", "mul", "norm", "quantize", "rope", "route"] {
        let source = Source::new(name).set("FLAT", tuning.flat).set("ROW", tuning.row);
        add(name.to_owned(), source.include("q", "lib/rotate"));
    }
    found
}

/// What is wrong with the code of a shader.
fn faults(name: &str, code: &Code) -> Vec<String> {
    let mut faults = Vec::new();
    for spilled in ["Spilled VGPRs", "Spilled SGPRs", "Scratch size"] {
        match code.statistic(spilled) {
            Some(0) => {}
            None => faults.push(format!("{name}: Mesa does not say its `{spilled}`")),
            Some(n) => faults.push(format!("{name}: {spilled} is {n}")),
        }
    }
    let waves = code.statistic("Subgroups per SIMD").unwrap_or(0);
    let one_token = !name.starts_with("matmul_many");
    if one_token && waves < WAVES {
        faults.push(format!("{name}: {waves} waves per SIMD, at least {WAVES} are needed"));
    }
    for exchange in ["ds_bpermute_b32", "v_readlane_b32"] {
        match code.count(exchange) {
            0 => {}
            n => faults.push(format!("{name}: {n} exchanges of lanes by {exchange}")),
        }
    }
    faults
}

/// Compiles all shaders for the card of the environment: a row for each, then the faults. Run by
/// [`amd_cards_run_the_shaders_well`] in a process of its own, because RADV reads the card's name
/// from the environment.
#[test]
#[ignore = "another test runs it with the name of a card in the environment"]
fn compile_for_the_card_of_the_environment() {
    let Some(device) = NullDevice::open() else {
        println!("RADV is missing");
        return;
    };
    println!("{}", device.name());
    println!("| shader | VGPRs | waves | LDS | instructions | DPP | loads of 4 words |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    let mut all_faults = Vec::new();
    for (name, source) in shaders() {
        let code = device.compile(&source).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!code.assembly.is_empty(), "{name}: without its instructions");
        println!(
            "| {name} | {} | {} | {} | {} | {} | {} |",
            code.statistic("VGPRs").unwrap_or(0),
            code.statistic("Subgroups per SIMD").unwrap_or(0),
            code.statistic("LDS size").unwrap_or(0),
            code.statistic("Instructions").unwrap_or(0),
            code.count("_dpp") + code.count("row_"),
            code.count("load_dwordx4") + code.count("load_b128"),
        );
        all_faults.extend(faults(&name, &code));
    }
    assert!(all_faults.is_empty(), "{}", all_faults.join("\n"));
}

#[test]
fn amd_cards_run_the_shaders_well() {
    let program = std::env::current_exe().expect("the path of the tests");
    for card in CARDS {
        let run = Command::new(&program)
            .args(["--exact", "--ignored", "--nocapture"])
            .arg("ops::amd_tests::compile_for_the_card_of_the_environment")
            .env("RADV_FORCE_FAMILY", card)
            .output()
            .expect("the tests can run themselves");
        let text = String::from_utf8_lossy(&run.stdout);
        if text.contains("RADV is missing") {
            println!("skipped: RADV, Mesa's driver for AMD cards, is missing or lacks {card}");
            continue;
        }
        println!("{text}");
        assert!(run.status.success(), "{card}: {}", String::from_utf8_lossy(&run.stderr));
    }
}
