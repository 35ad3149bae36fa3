//! A weight as shaders see it: the shader files that read its format, and ranges of rows that fit
//! one binding.

use hal::format::{Code, Format};
use hal::pack::transposed;
use hal::{Operand, Result, Tensor, TensorDesc};

use crate::buffer::{RowLayout, Span, raw};
use crate::error::driver;
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;
use layout::{is_transposed_quantised, needs_tables, stride};

/// A range of rows of a weight that fits one binding.
#[derive(Clone, Debug)]
pub(super) struct BoundRows {
    pub(super) span: Span,
    /// Index of the first row in the operand.
    pub(super) first: usize,
    pub(super) n: usize,
}

/// How a shader reads a weight; with the format, this selects the code to include.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Dot products with one token.
    DotsOne,
    /// [`Access::DotsOne`], with several units of the row loaded before the first is multiplied.
    DotsOneAhead,
    /// Dot products with four tokens at a time.
    DotsFour,
    /// [`Access::DotsFour`], with several units of the row loaded before the first is multiplied.
    DotsFourAhead,
    /// Codes and scales of blocks (or values of a float format), for tiles of many rows.
    Tile,
    /// Four dequantised values at a time.
    Fours,
}

impl Access {
    /// The dot products that a decode shader computes for this number of tokens.
    pub(super) fn dots(n_tokens: usize, facts: &Facts) -> Access {
        let [one, four] = if facts.tuning.loads_ahead {
            [Access::DotsOneAhead, Access::DotsFourAhead]
        } else {
            [Access::DotsOne, Access::DotsFour]
        };
        if n_tokens == 1 { one } else { four }
    }

    /// The file that adds up dot products, from units of a row; `None` for other code.
    fn dots_file(self) -> Option<&'static str> {
        match self {
            Access::DotsOne => Some("formats/dots_one"),
            Access::DotsOneAhead => Some("formats/dots_one_ahead"),
            Access::DotsFour => Some("formats/dots_four"),
            Access::DotsFourAhead => Some("formats/dots_four_ahead"),
            Access::Tile | Access::Fours => None,
        }
    }
}

/// The file of `shaders/formats/` that reads rows of a format; `None` if weights cannot have it.
fn format_file(format: Format) -> Option<&'static str> {
    Some(match format {
        Format::F32 => "formats/f32",
        Format::F16 => "formats/f16",
        Format::BF16 => "formats/bf16",
        Format::Q4_0 => "formats/q4_0",
        Format::Q4_1 => "formats/q4_1",
        Format::Q5_0 => "formats/q5_0",
        Format::Q5_1 => "formats/q5_1",
        Format::Q8_0 => "formats/q8_0",
        Format::Q2_K => "formats/q2_k",
        Format::Q3_K => "formats/q3_k",
        Format::Q4_K => "formats/q4_k",
        Format::Q5_K => "formats/q5_k",
        Format::Q6_K => "formats/q6_k",
        Format::IQ2_XXS => "formats/iq2_xxs",
        Format::IQ2_XS => "formats/iq2_xs",
        Format::IQ2_S => "formats/iq2_s",
        Format::IQ3_XXS => "formats/iq3_xxs",
        Format::IQ3_S => "formats/iq3_s",
        Format::IQ1_S => "formats/iq1_s",
        Format::IQ1_M => "formats/iq1_m",
        Format::IQ4_NL => "formats/iq4_nl",
        Format::IQ4_XS => "formats/iq4_xs",
        Format::MXFP4 => "formats/mxfp4",
        Format::Q1_0 => "formats/q1_0",
        Format::U32 => return None,
    })
}

/// Whether the format's shader file unpacks the codes of a block four at a time.
fn reads_four(format: Format) -> bool {
    needs_tables(format) || format == Format::MXFP4
}

/// Whether rows of a float weight, and the activations, are whole loads of four words.
fn is_wide(desc: &TensorDesc) -> bool {
    let aligned = |words: Option<usize>| words.is_some_and(|words| words.is_multiple_of(4));
    desc.format.quants().is_none() && aligned(stride(desc)) && desc.n_cols.is_multiple_of(8)
}

/// The file that multiplies float weights.
fn float_unit(desc: &TensorDesc) -> &'static str {
    if is_wide(desc) { "formats/unit_float_wide" } else { "formats/unit_float" }
}

/// Includes the shader code that reads a weight like `desc`. The names of its functions begin with
/// `name`.
pub(super) fn include(
    source: Source,
    name: &'static str,
    desc: &TensorDesc,
    access: Access,
) -> Result<Source> {
    let quantised = desc.format.quants();
    let Some(file) = format_file(desc.format) else {
        return Err(driver("compile", format!("{desc} is not a weight")));
    };
    let dots = access.dots_file();
    let (data, x) = match quantised {
        Some(_) => ("array<vec4<u32>>", "array<vec4<u32>>"),
        None if dots.is_some() && is_wide(desc) => ("array<vec4<u32>>", "array<vec4<f32>>"),
        None => ("array<u32>", "array<f32>"),
    };
    // The placeholders have the names of the bindings.
    let (data_type, x_type) = match name {
        "gate" => ("gate_type", "gate_x_type"),
        "up" => ("up_type", "up_x_type"),
        "down" => ("down_type", "down_x_type"),
        _ => ("weight_type", "weight_x_type"),
    };
    let mut source = source.include("block", "formats/block").set(data_type, data).set(x_type, x);
    let Some(quants) = quantised else {
        source = source.include(name, file);
        return Ok(match dots {
            Some(dots) => source.include(name, float_unit(desc)).include(name, dots),
            None => source.include(name, "formats/four_float"),
        });
    };
    source = source.include(name, "formats/access");
    if is_transposed_quantised(desc) {
        let (nibbles, offset) = match quants.code {
            Code::Nibble { offset } => (true, offset),
            Code::Byte => (false, 0),
        };
        return Ok(source
            .include(name, "formats/transposed")
            .set("NIBBLES", nibbles)
            .set("OFFSET", offset)
            .set("WIDE", quants.wide_scales)
            .set("MINS", quants.has_min));
    }
    if matches!(desc.format, Format::IQ4_NL | Format::IQ4_XS) {
        source = source.include(name, "formats/iq4");
    }
    source = source.include(name, file);
    if reads_four(desc.format) && access != Access::Fours {
        source = source.include(name, "formats/by_four");
    }
    if let Some(dots) = dots {
        source = source.include(name, "formats/unit_q8").include(name, dots);
    } else if access == Access::Fours {
        source = source.include(name, "formats/four_q8");
    }
    Ok(source)
}

/// Maximum number of rows per binding, a multiple of `step`; 0 if `step` rows do not fit.
pub(super) fn part_rows(desc: &TensorDesc, step: usize, facts: &Facts) -> usize {
    let row = 4 * stride(desc).unwrap_or(usize::MAX / 4).max(1) as u64;
    (facts.max_binding() / row) as usize / step * step
}

/// Why a weight cannot be read by this backend; `None` if it can.
pub(super) fn refusal(name: &str, desc: &TensorDesc, step: usize, facts: &Facts) -> Option<String> {
    let Some(_) = stride(desc) else {
        return Some(format!("operand {name} has an invalid shape: {desc}"));
    };
    if part_rows(desc, step, facts) == 0 {
        let limit = hal::Bytes(facts.max_binding());
        return Some(format!("a binding covers at most {limit}, less than {step} rows of {name}"));
    }
    if is_transposed_quantised(desc) {
        let size = transposed(desc).map_or(u64::MAX, |l| (l.n_bytes - l.groups_at) as u64);
        if size > facts.max_binding() {
            let (size, limit) = (hal::Bytes(size), hal::Bytes(facts.max_binding()));
            return Some(format!(
                "the scales of operand {name} take {size}, but a binding covers at most {limit}"
            ));
        }
    }
    None
}

impl BoundRows {
    /// Splits the range into ranges of at most `max_rows` rows; a row has `row` bytes.
    pub(super) fn split(&self, max_rows: usize, row: u64) -> impl Iterator<Item = BoundRows> {
        (0..self.n).step_by(max_rows.max(1)).map(move |at| {
            let n = max_rows.min(self.n - at);
            let span = self.span.part(row * at as u64, row * n as u64);
            BoundRows { span, first: self.first + at, n }
        })
    }
}

pub(super) struct Weight {
    pub(super) desc: TensorDesc,
    pub(super) row_words: usize,
    pub(super) parts: Vec<BoundRows>,
    /// Index of the first row in its buffer.
    pub(super) first_row: usize,
    buffer: wgpu::Buffer,
    whole: TensorDesc,
}

impl Weight {
    /// Splits the rows into parts that begin at multiples of `step` rows and fit one binding.
    pub(super) fn new(tensor: &Tensor, step: usize, out: &Lowering<'_>) -> Result<Weight> {
        let (raw, desc) = (raw(tensor)?, tensor.desc());
        // Quantised weights that were not imported still have the host's layout.
        let packed = raw.layout == RowLayout::Packed || desc.format.quants().is_none();
        let words = if packed { stride(&desc) } else { None };
        let Some(row_words) = words else {
            return Err(driver("bind", format!("{desc} was not imported as a weight")));
        };
        let rows = part_rows(&desc, step, out.facts()).max(1);
        let part = |first: usize| {
            let n = rows.min(desc.n_rows - first);
            let span = Span {
                buffer: raw.buffer.clone(),
                offset: 4 * (row_words * (tensor.first_row() + first)) as u64,
                size: 4 * (row_words * n) as u64,
            };
            BoundRows { span, first, n }
        };
        Ok(Weight {
            desc,
            row_words,
            parts: (0..desc.n_rows).step_by(rows).map(part).collect(),
            first_row: tensor.first_row(),
            buffer: raw.buffer.clone(),
            whole: tensor.whole(),
        })
    }

    /// The group numbers, scales and minimums of a transposed weight; then their three word offsets
    /// in the span, and words per row of scales. A dummy buffer if the weight is not transposed.
    pub(super) fn transposed_tables(&self, out: &Lowering<'_>) -> Result<(Span, [u32; 4])> {
        if !is_transposed_quantised(&self.desc) {
            return Ok((out.dummy(), [0; 4]));
        }
        let layout = transposed(&self.whole)?;
        let span = Span {
            buffer: self.buffer.clone(),
            offset: layout.groups_at as u64,
            size: (layout.n_bytes - layout.groups_at) as u64,
        };
        let at = |byte: usize| ((byte - layout.groups_at) / 4) as u32;
        // If the format has no minimums, shaders do not use their offset.
        let offsets =
            [0, at(layout.scales_at), at(layout.mins_at), layout.table_row_bytes as u32 / 4];
        Ok((span, offsets))
    }

    /// Code tables of the weight's format; a dummy buffer if it has none.
    pub(super) fn tables(&self, out: &Lowering<'_>) -> Result<Span> {
        if needs_tables(self.desc.format) && !is_transposed_quantised(&self.desc) {
            out.tables()
        } else {
            Ok(out.dummy())
        }
    }
}

/// Number of invocations that share a row: a power of two from 4 to 32, and at most the workgroup
/// size. Short rows have fewer.
pub(super) fn lanes(desc: &TensorDesc, facts: &Facts) -> usize {
    let units = match desc.format.quants() {
        Some(_) => desc.n_cols / 32,
        None if is_wide(desc) => stride(desc).unwrap_or(1) / 4,
        None => stride(desc).unwrap_or(1),
    };
    (units / 4).next_power_of_two().clamp(4, 32).min(facts.tuning.row as usize)
}
