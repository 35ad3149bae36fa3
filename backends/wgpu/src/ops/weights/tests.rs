//! Every shader variant of the ops on weights is valid and translates to SPIR-V, MSL and HLSL.

use hal::format::Format;
use hal::{Layout, TensorDesc};

use super::matmul::decode_source;
use super::operand::{Access, include};
use crate::shader::Source;
use crate::translate::{sizes, translate};

/// All dot products of decode shaders, with a number of tokens.
const DOTS: [(Access, usize); 4] = [
    (Access::DotsOne, 1),
    (Access::DotsOneAhead, 1),
    (Access::DotsFour, 4),
    (Access::DotsFourAhead, 4),
];

fn weight_formats() -> impl Iterator<Item = Format> {
    Format::ALL.iter().copied().filter(|format| format.is_weight())
}

fn check_all(name: &'static str, weight: &'static str, desc: &TensorDesc, [flat, row]: [u32; 2]) {
    let source = |access: Access, n_tokens: usize| {
        let source = decode_source(Source::new(name), n_tokens, row as usize).set("FLAT", flat);
        let source = include(source, weight, desc, access).expect("a weight");
        if name == "matmul_few" { source.include(weight, "lib/matmul_row") } else { source }
    };
    let include_each = |access: Access, files: [&'static str; 2]| {
        files.into_iter().map(|file| source(access, 4).include("which", file)).collect()
    };
    let sources: Vec<Source> = match name {
        "matmul_many" | "matmul_many_float" => {
            include_each(Access::Tile, ["lib/every_token", "lib/group_tokens"])
        }
        "down_many" => include_each(Access::Fours, ["lib/down_every", "lib/down_groups"]),
        "get_rows" | "down_few" => {
            vec![source(Access::Fours, 1), source(Access::Fours, 4)]
        }
        _ => DOTS.into_iter().map(|(access, n_tokens)| source(access, n_tokens)).collect(),
    };
    for source in sources {
        for shared in [false, true] {
            translate(&source, shared).unwrap_or_else(|error| panic!("{name} {desc}: {error}"));
        }
    }
}

/// Checks all shaders that read weights of a format, in workgroups of these sizes.
fn check_format(format: Format, sizes: [u32; 2]) {
    let desc = TensorDesc::new(64, 256, format);
    if format.quants().is_none() {
        // Rows that are not whole loads of four words.
        for name in ["matmul_few", "head_matmul"] {
            check_all(name, "weight", &TensorDesc::new(64, 67, format), sizes);
        }
    }
    let many = if format.quants().is_some() { "matmul_many" } else { "matmul_many_float" };
    for name in ["matmul_few", "head_matmul", many, "across_few", "get_rows"] {
        check_all(name, "weight", &desc, sizes);
    }
    for access in [Access::DotsOne, Access::DotsOneAhead] {
        let mut three = decode_source(Source::new("matmul_three"), 1, sizes[1] as usize);
        for name in ["first", "second", "third"] {
            three = include(three, name, &desc, access).expect("a weight");
            three = three.include(name, "lib/matmul_row");
        }
        translate(&three, false).unwrap_or_else(|error| panic!("{desc}: {error}"));
    }
    let layouts = [Layout::Rows, Layout::Transposed { n_source: 256 }];
    for layout in layouts {
        for name in ["down_few", "down_many"] {
            check_all(name, "down", &TensorDesc { layout, ..desc }, sizes);
        }
    }
    for (gate, up) in [(format, format), (Format::BF16, format), (format, Format::Q4_K)] {
        for (access, n_tokens) in DOTS {
            let gate = TensorDesc { format: gate, ..desc };
            let up = TensorDesc { format: up, ..desc };
            for name in ["ffn_few", "ffn_dense"] {
                let source = decode_source(Source::new(name), n_tokens, sizes[1] as usize);
                let source = include(source, "gate", &gate, access).expect("a weight");
                let source = include(source, "up", &up, access).expect("a weight");
                translate(&source, false)
                    .unwrap_or_else(|error| panic!("{name} {gate} {up}: {error}"));
            }
        }
    }
}

/// The shaders of products with weights of a format, in workgroups of `row` invocations that load
/// ahead: for one token, and for many.
#[cfg(target_os = "linux")]
pub(in crate::ops) fn products_of(format: Format, [flat, row]: [u32; 2]) -> Vec<Source> {
    let desc = TensorDesc::new(64, 256, format);
    let reading = |name: &'static str, weights: &[&'static str], access: Access| {
        let source = decode_source(Source::new(name), 1, row as usize).set("FLAT", flat);
        let each = |source, weight: &&'static str| include(source, weight, &desc, access);
        weights.iter().try_fold(source, each).expect("a weight")
    };
    let rows = |source: Source, weights: &[&'static str]| {
        weights.iter().fold(source, |source, weight| source.include(weight, "lib/matmul_row"))
    };
    let one = Access::DotsOneAhead;
    let three = ["first", "second", "third"];
    let many = if format.quants().is_some() { "matmul_many" } else { "matmul_many_float" };
    vec![
        rows(reading("matmul_few", &["weight"], one), &["weight"]),
        rows(reading("matmul_three", &three, one), &three),
        reading("ffn_dense", &["gate", "up"], one),
        reading("ffn_few", &["gate", "up"], one),
        reading("down_few", &["down"], Access::Fours),
        reading(many, &["weight"], Access::Tile).include("which", "lib/every_token"),
    ]
}

/// Checks all formats with the largest workgroups. Other workgroup sizes need only one quantised
/// format and one float format, since formats and workgroup sizes are in different shader files.
#[test]
fn shaders_of_every_format_translate() {
    let largest = sizes().into_iter().max();
    for sizes in sizes() {
        let samples = [Format::Q4_K, Format::F16];
        let takes = |format: &Format| Some(sizes) == largest || samples.contains(format);
        weight_formats().filter(takes).for_each(|format| check_format(format, sizes));
    }
}

#[test]
fn shaders_without_weights_translate() {
    let experts = ["experts_pairs", "experts_hidden", "experts_reduce"];
    let names = ["quantize", "ffn_hidden", "ffn_mask", "ffn_count", "ffn_cut", "down_reduce"];
    for [flat, _] in sizes() {
        for name in names.into_iter().chain(["predict_count", "predict_list"]).chain(experts) {
            for shared in [false, true] {
                let source = Source::new(name).set("FLAT", flat).set("ROW", 64);
                translate(&source, shared).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        }
    }
}
