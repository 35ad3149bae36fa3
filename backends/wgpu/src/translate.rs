//! Validates and translates shaders without a driver, for tests.

use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ValidationFlags, Validator};

use crate::facts::Tuning;
use crate::shader::Source;

/// The distinct workgroup sizes of all device classes: for elementwise shaders, and for the sum of
/// a row. The sizes for software drivers come first.
pub(crate) fn sizes() -> Vec<[u32; 2]> {
    let mut sizes = Vec::new();
    for Tuning { flat, row, .. } in Tuning::classes() {
        if !sizes.contains(&[flat, row]) {
            sizes.push([flat, row]);
        }
    }
    sizes
}

/// Parses and validates a shader as wgpu does, and translates it to SPIR-V, MSL and HLSL, also in
/// its variants with subgroups.
///
/// # Errors
/// The message of the stage that rejected the shader, with the line.
pub(crate) fn translate(source: &Source, shared: bool) -> Result<(), String> {
    let plain = source.text(shared);
    translate_text(&plain)?;
    for size in [4, 32, 64] {
        let text = source.clone().with_subgroups(Some(size)).text(shared);
        if text != plain {
            translate_text(&text)?;
        }
    }
    Ok(())
}

fn translate_text(text: &str) -> Result<(), String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|error| error.emit_to_string(text))?;
    let capabilities =
        Capabilities::IMMEDIATES | Capabilities::SUBGROUP | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    let info = Validator::new(ValidationFlags::all(), capabilities)
        .validate(&module)
        .map_err(|error| error.emit_to_string(text))?;
    let options = spv::Options { lang_version: (1, 3), ..spv::Options::default() };
    spv::write_vec(&module, &info, &options, None).map_err(|error| format!("SPIR-V: {error}"))?;
    let options = msl::Options { lang_version: (2, 4), ..msl::Options::default() };
    let pipeline = msl::PipelineOptions::default();
    msl::write_string(&module, &info, &options, &pipeline)
        .map_err(|error| format!("MSL: {error}"))?;
    let options = hlsl::Options {
        shader_model: hlsl::ShaderModel::V6_4,
        immediates_target: Some(hlsl::BindTarget::default()),
        ..hlsl::Options::default()
    };
    let (pipeline, mut out) = (hlsl::PipelineOptions::default(), String::new());
    hlsl::Writer::new(&mut out, &options, &pipeline)
        .write(&module, &info, None)
        .map_err(|error| format!("HLSL: {error}"))?;
    Ok(())
}
