//! The number formats of tensors.
//!
//! Each format has a line in the `formats!` table below and a file. The file of a quantised format
//! defines how a block is unpacked ([`Quants`]) and how values are quantised.
//! Dequantising, transposing and the reference dot product are generic over [`Quants`].
//!
//! Blocks are little-endian bytes without alignment, as in a file.

mod activation;
mod block;
mod cache;
pub mod grid;
pub mod grid_codes;
mod search;
mod transpose;
mod transposed;

mod bf16;
mod f16;
mod f32;
mod ids;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod q1_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;

#[cfg(test)]
mod tests;

use core::primitive;
use std::{fmt, str::FromStr};

pub use activation::{Activation, Q8_BLOCK, Q8Row, quantize_q8};
pub use block::{Code, Quants, UnpackedBlock};
pub use iq4_nl::IQ4_CODES;
pub use mxfp4::{E2M1_CODES, e8m0_scale};
pub use transpose::TransposedPart;
pub use transposed::{TransposedError, TransposedLayout};

use block::{Importance, Quantize, power};

// `f32` names a module in this file, so the number type is written `primitive::f32`.
macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident => $module:ident, $values:literal, $bytes:literal, $gguf:expr;)+) => {
        /// How the numbers of a tensor are stored.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[allow(non_camel_case_types, reason = "the spelling of GGUF")]
        pub enum Format {
            $($(#[$doc])* $name,)+
        }

        impl Format {
            /// Every format, in the order of the table.
            pub const ALL: &'static [Format] = &[$(Format::$name),+];

            /// The name as GGUF spells it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Format::$name => stringify!($name),)+ }
            }

            /// Values in one block.
            #[must_use]
            pub const fn block_values(self) -> usize {
                match self { $(Format::$name => $values,)+ }
            }

            /// Bytes of one block.
            #[must_use]
            pub const fn block_bytes(self) -> usize {
                match self { $(Format::$name => $bytes,)+ }
            }

            /// The type number in a GGUF file; `None` for a format that is not for weights.
            #[must_use]
            pub const fn gguf_id(self) -> Option<u32> {
                match self { $(Format::$name => $gguf,)+ }
            }

            /// How a block is unpacked; `None` for formats without blocks.
            #[must_use]
            pub const fn quants(self) -> Option<&'static Quants> {
                match self { $(Format::$name => $module::QUANTS,)+ }
            }

            /// Dequantises whole blocks: `bytes` of n blocks, `out` `[n * block_values]`.
            ///
            /// The values have the same bits as those of ggml's reference.
            ///
            /// # Panics
            /// If the lengths are not the same whole number of blocks.
            pub fn dequantize(self, bytes: &[u8], out: &mut [primitive::f32]) {
                self.check_lengths(bytes.len(), out.len());
                match self {
                    $(Format::$name => {
                        let blocks = bytes.chunks_exact($bytes);
                        for (block, out) in blocks.zip(out.chunks_exact_mut($values)) {
                            $module::dequantize_block(block, out);
                        }
                    })+
                }
            }

            /// Whether [`Format::quantize`] supports this format. Formats that need a search for
            /// the best table entries are read-only.
            #[must_use]
            pub const fn quantizes(self) -> bool {
                match self { $(Format::$name => $module::QUANTIZE.is_some(),)+ }
            }

            /// Quantises values to whole blocks: `values` `[n * block_values]`, `out` bytes of n
            /// blocks.
            ///
            /// # Panics
            /// If the lengths are not the same whole number of blocks, or the format is read-only
            /// ([`Format::quantizes`]).
            pub fn quantize(self, values: &[primitive::f32], out: &mut [u8]) {
                self.check_lengths(out.len(), values.len());
                match self {
                    $(Format::$name => {
                        let Some(quantize) = $module::QUANTIZE else {
                            panic!("{self} is read-only: it has no quantiser");
                        };
                        let blocks = out.chunks_exact_mut($bytes);
                        for (values, block) in values.chunks_exact($values).zip(blocks) {
                            quantize(values, None, block);
                        }
                    })+
                }
            }

            /// Quantises one row to whole blocks so that the errors in important columns are small:
            /// `values` and `columns` `[n * block_values]`, `out` bytes of n blocks. `columns` are
            /// the mean squares of the inputs that the columns are multiplied with, all finite and
            /// none negative. Formats without a search for scales ignore them.
            ///
            /// # Panics
            /// If the lengths are not the same whole number of blocks, or the format is read-only
            /// ([`Format::quantizes`]).
            pub fn quantize_row(
                self,
                values: &[primitive::f32],
                columns: &[primitive::f32],
                out: &mut [u8],
            ) {
                self.check_lengths(out.len(), values.len());
                self.check_lengths(out.len(), columns.len());
                let row_power = power(values);
                match self {
                    $(Format::$name => {
                        let Some(quantize) = $module::QUANTIZE else {
                            panic!("{self} is read-only: it has no quantiser");
                        };
                        let blocks = out.chunks_exact_mut($bytes);
                        let blocks = blocks.zip(columns.chunks_exact($values));
                        for (values, (block, columns)) in values.chunks_exact($values).zip(blocks) {
                            quantize(values, Some(Importance { columns, row_power }), block);
                        }
                    })+
                }
            }
        }
    };
}

formats! {
    //  name  module  values/block  bytes/block  gguf id
    /// 32-bit floats.
    F32  => f32,    1,   4, Some(0);
    /// 16-bit IEEE floats.
    F16  => f16,    1,   2, Some(1);
    /// The upper 16 bits of 32-bit floats.
    BF16 => bf16,   1,   2, Some(30);
    /// 4 bits per value; a scale per 32 values.
    Q4_0 => q4_0,  32,  18, Some(2);
    /// 4 bits per value; a scale and a minimum per 32 values.
    Q4_1 => q4_1,  32,  20, Some(3);
    /// 5 bits per value; a scale per 32 values.
    Q5_0 => q5_0,  32,  22, Some(6);
    /// 5 bits per value; a scale and a minimum per 32 values.
    Q5_1 => q5_1,  32,  24, Some(7);
    /// 8 bits per value; a scale per 32 values.
    Q8_0 => q8_0,  32,  34, Some(8);
    /// 2 bits per value; a 4-bit scale and minimum per 16 values.
    Q2_K => q2_k, 256,  84, Some(10);
    /// 3 bits per value; a 6-bit scale per 16 values.
    Q3_K => q3_k, 256, 110, Some(11);
    /// 4 bits per value; a 6-bit scale and minimum per 32 values.
    Q4_K => q4_k, 256, 144, Some(12);
    /// 5 bits per value; a 6-bit scale and minimum per 32 values.
    Q5_K => q5_k, 256, 176, Some(13);
    /// 6 bits per value; an 8-bit scale per 16 values.
    Q6_K => q6_k, 256, 210, Some(14);
    /// An index into a 256-entry table per 8 values, with signs; a 4-bit scale per 32 values.
    IQ2_XXS => iq2_xxs, 256, 66, Some(16);
    /// An index into a 512-entry table per 8 values, with signs; a 4-bit scale per 16 values.
    IQ2_XS => iq2_xs, 256, 74, Some(17);
    /// An index into a 256-entry table per 4 values, with signs; a 4-bit scale per 32 values.
    IQ3_XXS => iq3_xxs, 256, 98, Some(18);
    /// An index into a 2048-entry table per 8 values; a 3-bit scale per 32 values.
    IQ1_S => iq1_s, 256, 50, Some(19);
    /// A 4-bit index into 16 unevenly spaced values; a scale per 32 values.
    IQ4_NL => iq4_nl, 32, 18, Some(20);
    /// An index into a 512-entry table per 4 values, with signs; a 4-bit scale per 32 values.
    IQ3_S => iq3_s, 256, 110, Some(21);
    /// An index into a 1024-entry table per 8 values, with signs; a 4-bit scale per 16 values.
    IQ2_S => iq2_s, 256, 82, Some(22);
    /// A 4-bit index into 16 unevenly spaced values; a 6-bit scale per 32 values.
    IQ4_XS => iq4_xs, 256, 136, Some(23);
    /// An index into a 2048-entry table per 8 values; a 3-bit scale per 16 values.
    IQ1_M => iq1_m, 256, 56, Some(29);
    /// 4-bit floats; an 8-bit exponent per 32 values.
    MXFP4 => mxfp4, 32, 17, Some(39);
    /// A sign per value; a scale per 128 values.
    Q1_0 => q1_0, 128,  18, Some(41);
    /// Row and token numbers; not a weight format.
    U32  => ids,    1,   4, None;
}

impl Format {
    /// Bytes of a row of `n_cols` values; `None` if `n_cols` is not a whole number of blocks or the
    /// size overflows.
    #[must_use]
    pub const fn row_bytes(self, n_cols: usize) -> Option<usize> {
        if !n_cols.is_multiple_of(self.block_values()) {
            return None;
        }
        (n_cols / self.block_values()).checked_mul(self.block_bytes())
    }

    /// The format with this GGUF type number.
    #[must_use]
    pub fn from_gguf_id(id: u32) -> Option<Format> {
        Self::ALL.iter().copied().find(|format| format.gguf_id() == Some(id))
    }

    /// Whether a weight may be stored in this format.
    #[must_use]
    pub const fn is_weight(self) -> bool {
        self.gguf_id().is_some()
    }

    /// The activation format in a product with weights of this format.
    #[must_use]
    pub const fn activation(self) -> Activation {
        match self.quants() {
            Some(_) => Activation::Q8,
            None => Activation::F32,
        }
    }

    fn check_lengths(self, n_bytes: usize, n_values: usize) {
        assert_eq!(
            self.row_bytes(n_values),
            Some(n_bytes),
            "{n_values} values of {self} do not fit {n_bytes} bytes"
        );
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that matches no format.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown format '{name}'")]
pub struct UnknownFormat {
    /// The given name.
    pub name: String,
}

impl FromStr for Format {
    type Err = UnknownFormat;

    /// Parses a format's name, ignoring case.
    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        Self::ALL
            .iter()
            .copied()
            .find(|format| format.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| UnknownFormat { name: name.to_owned() })
    }
}
