//! The paged KV cache: storing keys and values, and how shaders read them.

use hal::format::Format;
use hal::op::StoreKv;
use hal::{KvCache, KvRows, Operand, Plan, Result, Tensor, TensorDesc};

use super::elementwise::each_value;
use crate::buffer::{plain, plain_stride};
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

/// Values of a head that an invocation loads at once.
pub(super) const VECTOR: usize = 8;

pub(super) fn refusal(
    operands: &[(&'static str, &TensorDesc)],
    cache: &KvRows<TensorDesc>,
    facts: &Facts,
) -> Option<String> {
    let halves = cache.tensors().map(|half| ("cache", half));
    let mut operands = operands.iter().copied().chain(halves);
    operands.find_map(|(name, desc)| facts.binding_refusal(name, desc))
}

pub(super) fn plan_store(op: &StoreKv<TensorDesc>, facts: &Facts) -> Plan {
    let values = op.v.as_ref().map(|v| ("v", v));
    let operands: Vec<_> = [("k", &op.k)].into_iter().chain(values).collect();
    let refusal = refusal(&operands, &op.cache, facts);
    refusal.map_or_else(Plan::yes, Plan::No)
}

pub(super) fn lower_store(op: &StoreKv<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (k, v) = (op.k.desc(), op.v.as_ref().map(Operand::desc));
    let halves = op.cache.map(&mut |half| half.desc());
    let n_stores =
        |x: &TensorDesc, half: &TensorDesc| x.n_cols.div_ceil(values_per_store(half.format));
    let k_stores = n_stores(&k, &halves.k);
    let v_stores = v.as_ref().map_or(0, |v| n_stores(v, halves.values()));
    let numbers = [
        op.batch.shape.max_tokens,
        k.n_rows,
        k.n_cols,
        v.map_or(0, |v| v.n_cols),
        k_stores,
        v_stores,
        row_words(&halves.k),
        row_words(halves.values()),
        halves.k.n_rows,
    ];
    let spans = [
        plain(&op.k)?,
        out.plain_or_dummy(op.v.as_ref())?,
        plain(&op.batch.words)?,
        plain(&op.cache.k)?,
        // Without values, nothing is written there.
        plain(op.cache.values())?,
    ];
    let source = store_sources("store_kv", formats(&op.cache));
    each_value(source, k.n_rows * (k_stores + v_stores), &spans, &numbers, out)
}

/// A format of the KV cache: the shader files that store and read it, and the number of values that
/// an invocation stores.
struct CacheFormat {
    format: Format,
    store: &'static [&'static str],
    read: &'static [&'static str],
    /// The file that reads eight values of a head of whole eights, beside those of `read`.
    eight: &'static str,
    /// The file that reads eight aligned values in wide loads, instead of the others.
    wide: Option<&'static str>,
    values_per_store: usize,
}

/// The entry of a format with codes of four or five bits, from the files with its constants and with
/// the choice of its codes.
macro_rules! nibbles {
    ($format:ident, $constants:literal, $codes:literal) => {
        CacheFormat {
            format: Format::$format,
            store: &[$constants, $codes, "cache/store_nibbles"],
            read: &[$constants, "cache/read_nibbles"],
            eight: "cache/eight_fours",
            wide: None,
            values_per_store: 64,
        }
    };
}

/// The entry of a float format.
macro_rules! floats {
    ($format:ident, $store:literal, $read:literal, $wide:literal, $values_per_store:literal) => {
        CacheFormat {
            format: Format::$format,
            store: &[$store],
            read: &[$read],
            eight: "cache/eight_fours",
            wide: Some($wide),
            values_per_store: $values_per_store,
        }
    };
}

/// An entry for each of [`hal::op::KV_FORMATS`].
const CACHE_FORMATS: [CacheFormat; 9] = [
    floats!(F32, "cache/store_f32", "cache/read_f32", "cache/wide_f32", 1),
    floats!(F16, "cache/store_f16", "cache/read_f16", "cache/wide_f16", 2),
    floats!(BF16, "cache/store_bf16", "cache/read_bf16", "cache/wide_bf16", 2),
    CacheFormat {
        format: Format::Q8_0,
        store: &["cache/store_q8_0"],
        read: &["cache/read_q8_0"],
        eight: "cache/eight_q8_0",
        wide: None,
        // Two blocks are whole words.
        values_per_store: 64,
    },
    nibbles!(Q4_0, "cache/q4_0", "cache/codes_from_farthest"),
    nibbles!(Q4_1, "cache/q4_1", "cache/codes_from_min"),
    nibbles!(Q5_0, "cache/q5_0", "cache/codes_from_farthest"),
    nibbles!(Q5_1, "cache/q5_1", "cache/codes_from_min"),
    nibbles!(IQ4_NL, "cache/iq4_nl", "cache/codes_iq4"),
];

/// The entry of a format; `hal` rejects all other formats.
fn cache_format(format: Format) -> &'static CacheFormat {
    let found = CACHE_FORMATS.iter().find(|cache| cache.format == format);
    found.unwrap_or(&CACHE_FORMATS[0])
}

/// Includes files for `{{include name}}`.
fn include(source: Source, name: &'static str, files: &[&'static str]) -> Source {
    files.iter().fold(source, |source, file| source.include(name, file))
}

/// A shader that stores keys and values of these formats.
pub(super) fn store_sources(name: &'static str, formats: KvCache<Format>) -> Source {
    let source = store_source(Source::new(name), "k", formats.k);
    let source = store_source(source, "v", formats.v);
    source.include("k", "lib/store_token").include("v", "lib/store_token")
}

/// A shader whose `{{include name}}` stores values in a format.
pub(super) fn store_source(source: Source, name: &'static str, format: Format) -> Source {
    include(source, name, cache_format(format).store)
}

/// The formats of the keys and of the values.
pub(super) fn formats(cache: &KvRows<Tensor>) -> KvCache<Format> {
    let [k, v] = [&cache.k, cache.values()].map(|half| half.desc().format);
    KvCache { k, v }
}

/// The number of values that an invocation stores.
pub(super) fn values_per_store(format: Format) -> usize {
    cache_format(format).values_per_store
}

pub(super) fn row_words(desc: &TensorDesc) -> usize {
    (plain_stride(desc).unwrap_or_default() / 4) as usize
}

/// How a shader reads keys or values.
#[derive(Clone, Copy, Debug)]
pub(super) struct HalfLayout {
    pub(super) format: Format,
    /// Values per head.
    pub(super) d: usize,
    /// Whether every row, and every eight values of a head, begin at a multiple of 16 bytes.
    pub(super) aligned: bool,
}

impl HalfLayout {
    pub(super) fn new(half: &Tensor, d: usize) -> Result<HalfLayout> {
        let desc = half.desc();
        let aligned = plain(half)?.offset.is_multiple_of(16) && row_words(&desc).is_multiple_of(4);
        Ok(HalfLayout { format: desc.format, d, aligned })
    }

    pub(super) fn include(
        self,
        source: Source,
        name: &'static str,
        binding: &'static str,
    ) -> Source {
        let whole = self.d.is_multiple_of(VECTOR);
        let cache = cache_format(self.format);
        match cache.wide {
            Some(file) if self.aligned && whole => {
                source.include(name, file).set(binding, "array<vec4<u32>>")
            }
            Some(_) | None => {
                let eight = if whole { cache.eight } else { "cache/eight_values" };
                let source = include(source, name, cache.read).include(name, eight);
                source.set(binding, "array<u32>")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hal::op::KV_FORMATS;

    use super::super::rope::rope_store;
    use super::*;
    use crate::translate::{sizes, translate};

    #[test]
    fn shaders_of_every_cache_translate() {
        for [flat, row] in sizes() {
            for (i, &k) in KV_FORMATS.iter().enumerate() {
                for v in [k, KV_FORMATS[(i + 1) % KV_FORMATS.len()]] {
                    let formats = KvCache { k, v };
                    for store in [store_sources("store_kv", formats), rope_store(formats)] {
                        let store = store.set("FLAT", flat).set("ROW", row);
                        translate(&store, false).unwrap_or_else(|error| panic!("{k} {v}: {error}"));
                    }
                }
            }
        }
    }
}
