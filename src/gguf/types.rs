//! The table of tensor types: id, name and block size of each type that ggml has given an id.

use std::fmt;

use super::Container;

/// The block of a type: `values` consecutive values of a row take `bytes` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Values in a block.
    pub values: u64,
    /// Bytes in a block.
    pub bytes: u64,
}

macro_rules! tensor_types {
    ($($name:ident = $id:literal, $values:literal, $bytes:literal;)*) => {
        /// Format of a tensor's values. Names are spelt as in GGUF tools.
        #[allow(non_camel_case_types)] // the formats' own names, spelt the same everywhere
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum TensorType {
            $(
                #[doc = concat!("GGUF id ", $id, ": ", $values, " values in ", $bytes, " bytes.")]
                $name,
            )*
            /// An id that is not in the container's table; its size is unknown.
            Unknown(u32),
        }

        impl TensorType {
            /// Every type of known size, by ascending GGUF id.
            pub const ALL: &[TensorType] = &[$(TensorType::$name),*];

            /// The name, `?` for an unknown id.
            pub fn name(self) -> &'static str {
                match self {
                    $(TensorType::$name => stringify!($name),)*
                    TensorType::Unknown(_) => "?",
                }
            }

            /// The block size; `None` for an unknown id.
            pub fn block(self) -> Option<Block> {
                match self {
                    $(TensorType::$name => Some(Block { values: $values, bytes: $bytes }),)*
                    TensorType::Unknown(_) => None,
                }
            }

            /// The id in current GGUF.
            fn gguf_id(self) -> u32 {
                match self {
                    $(TensorType::$name => $id,)*
                    TensorType::Unknown(id) => id,
                }
            }

            fn from_gguf_id(id: u32) -> TensorType {
                match id {
                    $($id => TensorType::$name,)*
                    _ => TensorType::Unknown(id),
                }
            }
        }
    };
}

// Source: ggml's type list and block structures.
tensor_types! {
    F32     = 0,  1,   4;
    F16     = 1,  1,   2;
    Q4_0    = 2,  32,  18;
    Q4_1    = 3,  32,  20;
    Q5_0    = 6,  32,  22;
    Q5_1    = 7,  32,  24;
    Q8_0    = 8,  32,  34;
    Q8_1    = 9,  32,  36;
    Q2_K    = 10, 256, 84;
    Q3_K    = 11, 256, 110;
    Q4_K    = 12, 256, 144;
    Q5_K    = 13, 256, 176;
    Q6_K    = 14, 256, 210;
    Q8_K    = 15, 256, 292;
    IQ2_XXS = 16, 256, 66;
    IQ2_XS  = 17, 256, 74;
    IQ3_XXS = 18, 256, 98;
    IQ1_S   = 19, 256, 50;
    IQ4_NL  = 20, 32,  18;
    IQ3_S   = 21, 256, 110;
    IQ2_S   = 22, 256, 82;
    IQ4_XS  = 23, 256, 136;
    I8      = 24, 1,   1;
    I16     = 25, 1,   2;
    I32     = 26, 1,   4;
    I64     = 27, 1,   8;
    F64     = 28, 1,   8;
    IQ1_M   = 29, 256, 56;
    BF16    = 30, 1,   2;
    TQ1_0   = 34, 256, 54;
    TQ2_0   = 35, 256, 66;
    MXFP4   = 39, 32,  17;
    NVFP4   = 40, 64,  36;
    Q1_0    = 41, 128, 18;
}

/// PowerInfer's fork is older than most types: up to this id its ids equal GGUF's...
const LAST_SHARED_ID: u32 = 15;
/// ...and then come these three, where GGUF has other types.
const POWERINFER_INTEGERS: [(u32, TensorType); 3] =
    [(16, TensorType::I8), (17, TensorType::I16), (18, TensorType::I32)];

impl TensorType {
    /// The type with this id in `container`.
    pub fn from_id(id: u32, container: Container) -> TensorType {
        match container {
            Container::Gguf => TensorType::from_gguf_id(id),
            Container::PowerInfer if id <= LAST_SHARED_ID => TensorType::from_gguf_id(id),
            Container::PowerInfer => POWERINFER_INTEGERS
                .iter()
                .find(|(known, _)| *known == id)
                .map_or(TensorType::Unknown(id), |(_, ty)| *ty),
        }
    }

    /// The id of this type in `container`; `None` if its table lacks the type.
    pub fn id(self, container: Container) -> Option<u32> {
        self.block()?;
        match container {
            Container::Gguf => Some(self.gguf_id()),
            Container::PowerInfer if self.gguf_id() <= LAST_SHARED_ID => Some(self.gguf_id()),
            Container::PowerInfer => {
                POWERINFER_INTEGERS.iter().find(|(_, ty)| *ty == self).map(|(id, _)| *id)
            }
        }
    }

    /// The history of a removed id, as an addition to a message.
    #[must_use]
    pub fn history(id: u32) -> &'static str {
        match id {
            4 | 5 | 31..=33 | 36..=38 => {
                ", which was removed from the format; get a newer file of the model"
            }
            _ => "",
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.block() {
            Some(_) => f.pad(self.name()),
            None => f.pad(&format!("?{}", self.gguf_id())),
        }
    }
}
