//! Finds the quantised weights of a checkpoint by `quantization_config`, and joins each with its scales.
//!
//! Source: the settings and tensor names of `transformers` and compressed-tensors, as llama.cpp's converter
//! reads them.

use std::sync::Arc;

use serde_json::Value;

use super::packed::{Codes, Layout, MXFP4_VALUES, Numbers, Packing, Zero};
use super::{Checkpoint, Encoding, Tensor};
use crate::Error;
use crate::config::Json;
use gguf::Bytes;

/// Suffixes of the scales of activations and KV caches, which a file does not use.
const UNUSED: &[&str] = &[
    ".activation_scale",
    "_activation_scale",
    ".input_scale",
    ".input_zero_point",
    ".output_scale",
    ".q_scale",
    ".k_scale",
    ".v_scale",
    ".kv_scale",
];
const METHODS: &str =
    "fp8, fbgemm_fp8, modelopt with FP8, compressed-tensors, gptq, awq or mxfp4 (gpt-oss)";

/// How a checkpoint stores quantised weights.
enum Scheme {
    /// Weights of 8 bits with scales for the tensor, its rows, or blocks of this size.
    EightBits(Option<[usize; 2]>),
    /// Integers in words along the rows, as compressed-tensors packs them.
    Packed { bits: u32 },
    /// Integers in words along the columns of the transposed matrix; `more` is added to zeros.
    Gptq { bits: u32, more: i32 },
    /// Integers in words along the rows of the transposed matrix.
    Awq { bits: u32 },
}

impl Checkpoint {
    /// Joins quantised weights with their scales, so that they are read as numbers.
    ///
    /// # Errors
    /// Another kind of quantisation, a weight or scale that is missing or has another shape or type.
    pub(crate) fn join_scales(&mut self, config: &Json) -> Result<(), Error> {
        let Some(scheme) = scheme(config)? else { return Ok(()) };
        self.tensors.retain(|name, _| !UNUSED.iter().any(|end| name.ends_with(end)));
        let names: Vec<String> = self.tensors.keys().cloned().collect();
        for name in &names {
            match scheme {
                Scheme::EightBits(block) => self.join_eight_bits(name, block)?,
                Scheme::Packed { bits } => self.join_packed(name, bits)?,
                Scheme::Gptq { bits, more } => self.join_gptq(name, bits, more)?,
                Scheme::Awq { bits } => self.join_awq(name, bits)?,
            }
        }
        Ok(())
    }

    fn take(&mut self, name: &str) -> Result<Tensor, Error> {
        let missing = || Error::MissingTensor { tensor: name.to_owned() };
        self.tensors.remove(name).ok_or_else(missing)
    }

    fn put(&mut self, tensor: Tensor) -> Result<(), Error> {
        let name = tensor.name.clone();
        match self.tensors.insert(name.clone(), tensor) {
            None => Ok(()),
            Some(_) => Err(Error::DuplicateTensor { file: name.clone(), tensor: name }),
        }
    }

    fn join_eight_bits(&mut self, name: &str, block: Option<[usize; 2]>) -> Result<(), Error> {
        if let Some(module) = name.strip_suffix(".scale") {
            return self.join_module(module, name, block);
        }
        let own = name.strip_suffix("_scale_inv").or_else(|| name.strip_suffix("_scale"));
        // The scale of a router is a tensor of its own.
        match own.filter(|own| own.ends_with("weight") || name.ends_with("_inv")) {
            Some(weight) => self.join_weight(weight, name, block),
            None => Ok(()),
        }
    }

    /// DeepSeek V4's names: `module.weight` with `module.scale`, of 8 bits, or of 4 bits in experts.
    fn join_module(
        &mut self,
        module: &str,
        scale: &str,
        block: Option<[usize; 2]>,
    ) -> Result<(), Error> {
        let weight = format!("{module}.weight");
        match self.tensors.get(&weight).map(|tensor| tensor.encoding) {
            Some(Encoding::Other("F8_E4M3" | "F8_E5M2")) => self.join_weight(&weight, scale, block),
            Some(Encoding::Other("I8") | Encoding::U8) => self.join_four_bits(&weight, scale),
            // The scale of something else is a tensor of its own.
            Some(_) | None => Ok(()),
        }
    }

    /// Floats of 4 bits, two in a byte, with a power of two for each 32 of a row.
    fn join_four_bits(&mut self, weight: &str, scale: &str) -> Result<(), Error> {
        let (scale, mut tensor) = (self.take(scale)?, self.take(weight)?);
        let (n_matrices, [n_rows, n_bytes]) = matrix(&tensor)?;
        let n_cols = 2 * n_bytes;
        if !n_cols.is_multiple_of(MXFP4_VALUES) {
            return Err(wrong(&tensor, "whole blocks of 32 values, two in a byte"));
        }
        let per_row = n_cols / MXFP4_VALUES;
        let scales = Numbers::powers(&scale)?;
        expect(&scale, n_matrices * n_rows * per_row)?;
        if !scale.shape.ends_with(&[n_rows as u64, per_row as u64]) {
            return Err(wrong(&scale, &format!("{n_rows} rows of {per_row} scales")));
        }
        let block = [1, MXFP4_VALUES];
        let (groups, zero, n_scales) = (None, Zero::At(0), n_rows * per_row);
        let codes = Codes::Float4;
        let packing = Packing { codes, n_rows, n_cols, scales, block, n_scales, groups, zero };
        if let Some(cols) = tensor.shape.last_mut() {
            *cols = n_cols as u64;
        }
        tensor.packing = Some(Arc::new(packing));
        self.put(tensor)
    }

    /// Joins a weight of 8 bits with its scales.
    fn join_weight(
        &mut self,
        weight: &str,
        scale: &str,
        block: Option<[usize; 2]>,
    ) -> Result<(), Error> {
        let (scale, mut tensor) = (self.take(scale)?, self.take(weight)?);
        let codes = match tensor.encoding {
            Encoding::Other("F8_E4M3") => Codes::Float8E4M3,
            Encoding::Other("F8_E5M2") => Codes::Float8E5M2,
            Encoding::Other("I8") => Codes::Int8,
            Encoding::Plain(_) | Encoding::F64 | Encoding::U8 | Encoding::Other(_) => {
                let found = tensor.encoding.name().to_owned();
                return Err(Error::Encoding { tensor: tensor.name, expected: "8 bits", found });
            }
        };
        let (n_matrices, [n_rows, n_cols]) = matrix(&tensor)?;
        let by_block = block.is_some();
        let (block, per_matrix) = match block {
            Some([rows, cols]) => ([rows.min(n_rows), cols.min(n_cols)], true),
            None => by_shape(&tensor, &scale)?,
        };
        let grid = [n_rows.div_ceil(block[0]), n_cols.div_ceil(block[1])];
        let n_scales = if per_matrix { grid[0] * grid[1] } else { 0 };
        expect(&scale, if per_matrix { n_matrices * n_scales } else { 1 })?;
        if by_block && !scale.shape.ends_with(&grid.map(|n| n as u64)) {
            return Err(wrong(&scale, &format!("{grid:?} blocks")));
        }
        let scales = Numbers::new(&scale)?;
        let (groups, zero) = (None, Zero::At(0));
        let packing = Packing { codes, n_rows, n_cols, scales, block, n_scales, groups, zero };
        tensor.packing = Some(Arc::new(packing));
        self.put(tensor)
    }

    fn join_packed(&mut self, name: &str, bits: u32) -> Result<(), Error> {
        let Some(weight) = name.strip_suffix("_packed") else { return Ok(()) };
        let (words, scale) = (self.take(name)?, self.take(&format!("{weight}_scale"))?);
        let shape = self.take(&format!("{weight}_shape"))?;
        let zeros = self.tensors.remove(&format!("{weight}_zero_point"));
        let &[n_rows, n_cols] = whole_numbers(&shape)?.as_slice() else {
            return Err(wrong(&shape, "two sizes"));
        };
        let layout = Layout { bits, down: false, alternating: false, n_cols };
        expect_words(&words, &[n_rows, n_cols.div_ceil(layout.per_word())])?;
        let &[scale_rows, n_groups] = scale.shape.as_slice() else {
            return Err(wrong(&scale, "a row of scales for each row"));
        };
        let n_groups = n_groups as usize;
        if scale_rows as usize != n_rows || n_groups == 0 || !n_cols.is_multiple_of(n_groups) {
            return Err(wrong(&scale, &format!("{n_rows} rows of scales for {n_cols} columns")));
        }
        let zero = match zeros {
            // Values from -8 to 7 are stored as 0 to 15.
            None => Zero::At(1 << (bits - 1)),
            Some(zeros) => {
                let layout = Layout { down: true, n_cols: n_groups, ..layout };
                expect_words(&zeros, &[n_rows.div_ceil(layout.per_word()), n_groups])?;
                Zero::Words(layout, zeros.bytes, 0)
            }
        };
        let packing = Packing {
            codes: Codes::Words(layout),
            n_rows,
            n_cols,
            scales: Numbers::new(&scale)?,
            block: [1, n_cols / n_groups],
            n_scales: 0,
            groups: None,
            zero,
        };
        let shape = vec![n_rows as u64, n_cols as u64];
        let packing = Some(Arc::new(packing));
        self.put(Tensor { name: weight.to_owned(), shape, packing, ..words })
    }

    fn join_gptq(&mut self, name: &str, bits: u32, more: i32) -> Result<(), Error> {
        let Some(module) = name.strip_suffix(".qweight") else { return Ok(()) };
        let words = self.take(name)?;
        let &[word_rows, n_out] = words.shape.as_slice() else {
            return Err(wrong(&words, "a matrix of words"));
        };
        let layout = Layout { bits, down: true, alternating: false, n_cols: n_out as usize };
        let n_in = word_rows as usize * layout.per_word();
        let mut packing = self.transposed(module, &words, layout, n_in, more)?;
        if let Some(order) = self.tensors.remove(&format!("{module}.g_idx")) {
            let groups = whole_numbers(&order)?;
            let n_groups = packing.n_rows / packing.block[0];
            if groups.len() != n_in || groups.iter().any(|&group| group >= n_groups) {
                let expected = format!("{n_in} numbers below {n_groups}");
                return Err(wrong(&order, &expected));
            }
            packing.groups = Some(as_words(&order, &groups));
        }
        self.put_transposed(module, words, packing)
    }

    fn join_awq(&mut self, name: &str, bits: u32) -> Result<(), Error> {
        let Some(module) = name.strip_suffix(".qweight") else { return Ok(()) };
        let words = self.take(name)?;
        let &[n_in, word_cols] = words.shape.as_slice() else {
            return Err(wrong(&words, "a matrix of words"));
        };
        let mut layout = Layout { bits, down: false, alternating: true, n_cols: 0 };
        layout.n_cols = word_cols as usize * layout.per_word();
        let packing = self.transposed(module, &words, layout, n_in as usize, 0)?;
        self.put_transposed(module, words, packing)
    }

    /// The codes of a matrix that is stored by columns, with scales and zeros for groups of its inputs.
    fn transposed(
        &mut self,
        module: &str,
        words: &Tensor,
        layout: Layout,
        n_in: usize,
        more: i32,
    ) -> Result<Packing, Error> {
        let scale = self.take(&format!("{module}.scales"))?;
        let zeros = self.take(&format!("{module}.qzeros"))?;
        let n_out = layout.n_cols;
        if words.encoding != Encoding::Other("I32") {
            let found = words.encoding.name().to_owned();
            return Err(Error::Encoding { tensor: words.name.clone(), expected: "I32", found });
        }
        let n_groups = scale.shape.first().map_or(0, |&n| n as usize);
        if words.shape.contains(&0) {
            return Err(wrong(words, "a matrix that is not empty"));
        }
        if n_groups == 0 || !n_in.is_multiple_of(n_groups) || scale.shape.len() != 2 {
            return Err(wrong(&scale, &format!("rows of scales for groups of {n_in} inputs")));
        }
        expect(&scale, n_groups * n_out)?;
        let zero_layout = Layout { down: false, ..layout };
        expect_words(&zeros, &[n_groups, n_out.div_ceil(layout.per_word())])?;
        Ok(Packing {
            codes: Codes::Words(layout),
            n_rows: n_in,
            n_cols: n_out,
            scales: Numbers::new(&scale)?,
            block: [n_in / n_groups, 1],
            n_scales: 0,
            groups: None,
            zero: Zero::Words(zero_layout, zeros.bytes, more),
        })
    }

    fn put_transposed(
        &mut self,
        module: &str,
        words: Tensor,
        packing: Packing,
    ) -> Result<(), Error> {
        let shape = vec![packing.n_cols as u64, packing.n_rows as u64];
        let (name, packing) = (format!("{module}.weight"), Some(Arc::new(packing)));
        self.put(Tensor { name, shape, packing, transposed: true, ..words })
    }
}

/// The scheme that `config.json` states; `None` without one, or for MXFP4, which the rules of gpt-oss read.
fn scheme(config: &Json) -> Result<Option<Scheme>, Error> {
    let mut settings = config.inner("quantization_config")?;
    if settings.entries().next().is_none() {
        settings = config.inner("compression_config")?;
    }
    if settings.entries().next().is_none() {
        return Ok(None);
    }
    let bits = |settings: &Json, key: &str| match settings.u32(&[key])? {
        Some(bits @ (2 | 4 | 8)) => Ok(bits),
        other => {
            let found = other.map_or_else(|| "missing".to_owned(), |bits| bits.to_string());
            Err(settings.wrong_value(key, "2, 4 or 8", found))
        }
    };
    let method = settings.text(&["quant_method"])?.unwrap_or_default();
    match method.as_str() {
        "mxfp4" => Ok(None),
        "fp8" => Ok(Some(Scheme::EightBits(block(&settings, "weight_block_size")?))),
        "fbgemm_fp8" => Ok(Some(Scheme::EightBits(None))),
        "modelopt" => match settings.text(&["quant_algo"])?.as_deref() {
            Some("FP8") => Ok(Some(Scheme::EightBits(None))),
            other => {
                let found = other.unwrap_or("missing").to_owned();
                Err(settings.wrong_value("quantization_config.quant_algo", "FP8", found))
            }
        },
        "compressed-tensors" => compressed(&settings).map(Some),
        "gptq" => {
            let older = settings.text(&["checkpoint_format"])?.as_deref() != Some("gptq_v2");
            Ok(Some(Scheme::Gptq { bits: bits(&settings, "bits")?, more: i32::from(older) }))
        }
        "awq" => {
            let version = settings.text(&["version"])?.unwrap_or_else(|| "gemm".to_owned());
            if !version.eq_ignore_ascii_case("gemm") {
                let key = "quantization_config.version";
                return Err(settings.wrong_value(key, "gemm", version));
            }
            match bits(&settings, "bits")? {
                4 => Ok(Some(Scheme::Awq { bits: 4 })),
                other => Err(settings.wrong_value("quantization_config.bits", "4", other)),
            }
        }
        other => Err(settings.wrong_value("quantization_config.quant_method", METHODS, other)),
    }
}

/// The scheme of compressed-tensors, which all groups of modules must share.
fn compressed(settings: &Json) -> Result<Scheme, Error> {
    let key = "quantization_config.config_groups";
    let groups = settings.inner("config_groups")?;
    let weights: Vec<&Value> =
        groups.entries().filter_map(|(_, group)| group.get("weights")).collect();
    let Some(first) = weights.first() else {
        return Err(settings.missing(key, "the settings of the weights"));
    };
    if weights.iter().any(|other| other != first) {
        let expected = "groups whose weights have the same settings";
        return Err(settings.wrong_value(key, expected, format!("{} groups", weights.len())));
    }
    let of = |key: &str| first.get(key).filter(|value| !value.is_null());
    let n_bits = of("num_bits").and_then(Value::as_u64);
    let format = settings.text(&["format"])?.unwrap_or_default();
    let own = groups.entries().next().and_then(|(_, group)| group.get("format")?.as_str());
    let format = if format == "mixed-precision" { own.unwrap_or_default() } else { &format };
    match (format, n_bits) {
        ("float-quantized" | "int-quantized" | "naive-quantized", Some(8)) => {
            let block = of("block_structure").map(numbers_of);
            match block {
                None => Ok(Scheme::EightBits(None)),
                Some(Some(block)) => Ok(Scheme::EightBits(Some(block))),
                Some(None) => {
                    let found = of("block_structure").map(Value::to_string).unwrap_or_default();
                    Err(settings.wrong_value("block_structure", "two positive sizes", found))
                }
            }
        }
        ("pack-quantized", Some(bits @ (4 | 8))) => Ok(Scheme::Packed { bits: bits as u32 }),
        (format, _) => {
            let expected = "float-quantized, int-quantized, naive-quantized (8 bits) or pack-quantized (4 or 8 bits)";
            let bits = n_bits.map(|bits| format!(" with {bits} bits")).unwrap_or_default();
            let key = "quantization_config.format";
            Err(settings.wrong_value(key, expected, format!("{format}{bits}")))
        }
    }
}

fn block(settings: &Json, key: &str) -> Result<Option<[usize; 2]>, Error> {
    let Some((_, size)) = settings.get(&[key]) else { return Ok(None) };
    let invalid = || settings.wrong_value(key, "two positive sizes", size);
    numbers_of(size).map(Some).ok_or_else(invalid)
}

/// A list of two positive numbers.
fn numbers_of(size: &Value) -> Option<[usize; 2]> {
    let number = |value: &Value| usize::try_from(value.as_u64()?).ok().filter(|&n| n > 0);
    let [rows, cols] = size.as_array()?.as_slice() else { return None };
    Some([number(rows)?, number(cols)?])
}

fn wrong(tensor: &Tensor, expected: &str) -> Error {
    let (name, found) = (tensor.name.clone(), tensor.shape.clone());
    Error::Shape { tensor: name, expected: expected.to_owned(), found }
}

/// The number of matrices in a tensor, and the rows and columns of each.
fn matrix(tensor: &Tensor) -> Result<(usize, [usize; 2]), Error> {
    if tensor.transposed || tensor.bytes.is_empty() {
        return Err(wrong(tensor, "a matrix stored by rows"));
    }
    match tensor.shape.as_slice() {
        // The bytes are mapped, so every product of the sizes fits in `usize`.
        [outer @ .., rows, cols] => {
            let n = outer.iter().product::<u64>() as usize;
            Ok((n, [*rows as usize, *cols as usize]))
        }
        [] | [_] => Err(wrong(tensor, "a matrix")),
    }
}

/// The block that shares a scale, by the shape of the scales: one number, or one for each index of the first
/// axes. Also whether each matrix has scales of its own.
fn by_shape(tensor: &Tensor, scale: &Tensor) -> Result<([usize; 2], bool), Error> {
    let (_, [n_rows, n_cols]) = matrix(tensor)?;
    if scale.shape.iter().all(|&n| n == 1) {
        return Ok(([n_rows, n_cols], false));
    }
    let n = tensor.shape.len();
    let mut axes = scale.shape.clone();
    axes.resize(n.max(axes.len()), 1);
    let rows = if axes[n - 2] == 1 { n_rows } else { 1 };
    let fits = axes[..n - 2] == tensor.shape[..n - 2]
        && (axes[n - 2] == 1 || axes[n - 2] == tensor.shape[n - 2])
        && axes[n - 1..].iter().all(|&axis| axis == 1);
    if fits {
        return Ok(([rows, n_cols], true));
    }
    Err(wrong(scale, &format!("one scale, or one for each row of {:?}", tensor.shape)))
}

/// Returns an error if a tensor does not have `n` values.
fn expect(tensor: &Tensor, n: usize) -> Result<(), Error> {
    let found = tensor.shape.iter().product::<u64>();
    if found == n as u64 { Ok(()) } else { Err(wrong(tensor, &format!("{n} scales"))) }
}

fn expect_words(tensor: &Tensor, shape: &[usize]) -> Result<(), Error> {
    if tensor.encoding != Encoding::Other("I32") {
        let (tensor, found) = (tensor.name.clone(), tensor.encoding.name().to_owned());
        return Err(Error::Encoding { tensor, expected: "I32", found });
    }
    let is_same = tensor.shape.iter().map(|&n| n as usize).eq(shape.iter().copied());
    if is_same { Ok(()) } else { Err(wrong(tensor, &format!("{shape:?}"))) }
}

/// The values of a tensor of whole numbers.
pub(crate) fn whole_numbers(tensor: &Tensor) -> Result<Vec<usize>, Error> {
    let unit = match tensor.encoding {
        Encoding::Other("I32") => 4,
        Encoding::Other("I64") => 8,
        Encoding::Plain(_) | Encoding::F64 | Encoding::U8 | Encoding::Other(_) => {
            let (tensor, found) = (tensor.name.clone(), tensor.encoding.name().to_owned());
            return Err(Error::Encoding { tensor, expected: "I32 or I64", found });
        }
    };
    let number = |bytes: &[u8]| {
        let mut all = [0; 8];
        all[..unit].copy_from_slice(bytes);
        // A negative number becomes one that no model has.
        usize::try_from(u64::from_le_bytes(all)).ok().filter(|&n| n < 1 << 31)
    };
    let all = tensor.bytes.chunks_exact(unit).map(number).collect::<Option<Vec<usize>>>();
    all.ok_or_else(|| wrong(tensor, "whole numbers that are not negative"))
}

/// Numbers as 32-bit words: the mapped bytes of `tensor` if it has them in that form.
fn as_words(tensor: &Tensor, numbers: &[usize]) -> Bytes {
    if tensor.encoding == Encoding::Other("I32") {
        return tensor.bytes.clone();
    }
    let words = numbers.iter().flat_map(|&n| (n as u32).to_le_bytes());
    Bytes::from(words.collect::<Vec<u8>>())
}
