//! The types of tensors in files: the engine's formats (`hal::format`), and the types of ggml that
//! the engine cannot compute with.

use std::fmt;

use hal::format::Format;

use super::Container;

/// The block of a type: `values` consecutive values of a row take `bytes` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Values in a block.
    pub values: u64,
    /// Bytes in a block.
    pub bytes: u64,
}

macro_rules! other_types {
    ($($name:ident = $id:literal, $values:literal, $bytes:literal;)*) => {
        /// Format of a tensor's values. Names are spelt as in GGUF tools.
        #[allow(non_camel_case_types)] // the formats' own names, spelt the same everywhere
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum TensorType {
            /// A format of the engine, whose name, block size and GGUF id are in `hal`'s table.
            Format(Format),
            $(
                #[doc = concat!("GGUF id ", $id, ": ", $values, " values in ", $bytes, " bytes.")]
                $name,
            )*
            /// An id that is not in the container's table; its size is unknown.
            Unknown(u32),
        }

        /// The types of ggml that the engine cannot compute with.
        const OTHERS: &[TensorType] = &[$(TensorType::$name),*];

        impl TensorType {
            /// The name, `?` for an unknown id.
            pub fn name(self) -> &'static str {
                match self {
                    TensorType::Format(format) => format.name(),
                    $(TensorType::$name => stringify!($name),)*
                    TensorType::Unknown(_) => "?",
                }
            }

            /// The block size; `None` for an unknown id.
            pub fn block(self) -> Option<Block> {
                match self {
                    TensorType::Format(format) => Some(Block {
                        values: format.block_values() as u64,
                        bytes: format.block_bytes() as u64,
                    }),
                    $(TensorType::$name => Some(Block { values: $values, bytes: $bytes }),)*
                    TensorType::Unknown(_) => None,
                }
            }

            /// The id in current GGUF; `None` for a format of activations.
            fn gguf_id(self) -> Option<u32> {
                match self {
                    TensorType::Format(format) => format.gguf_id(),
                    $(TensorType::$name => Some($id),)*
                    TensorType::Unknown(id) => Some(id),
                }
            }
        }
    };
}

// Source: ggml's type list and block structures.
other_types! {
    Q8_1    = 9,  32,  36;
    Q8_K    = 15, 256, 292;
    I8      = 24, 1,   1;
    I16     = 25, 1,   2;
    I32     = 26, 1,   4;
    I64     = 27, 1,   8;
    F64     = 28, 1,   8;
    TQ1_0   = 34, 256, 54;
    TQ2_0   = 35, 256, 66;
    NVFP4   = 40, 64,  36;
}

/// Up to this id, PowerInfer's ids equal GGUF's; its fork of ggml is older than the other types.
const LAST_SHARED_ID: u32 = 15;
/// PowerInfer's ids above [`LAST_SHARED_ID`]; GGUF uses them for other types.
const POWERINFER_INTEGERS: [(u32, TensorType); 3] =
    [(16, TensorType::I8), (17, TensorType::I16), (18, TensorType::I32)];

impl From<Format> for TensorType {
    fn from(format: Format) -> TensorType {
        TensorType::Format(format)
    }
}

impl PartialEq<Format> for TensorType {
    fn eq(&self, other: &Format) -> bool {
        *self == TensorType::Format(*other)
    }
}

impl TensorType {
    /// 32-bit floats.
    pub const F32: TensorType = TensorType::Format(Format::F32);
    /// 16-bit IEEE floats.
    pub const F16: TensorType = TensorType::Format(Format::F16);

    /// Every type of known size that a file may hold.
    pub fn all() -> impl Iterator<Item = TensorType> {
        let formats = Format::ALL.iter().copied().filter(|format| format.is_weight());
        formats.map(TensorType::Format).chain(OTHERS.iter().copied())
    }

    /// The engine's format for this type; `None` if the engine cannot compute with it.
    #[must_use]
    pub fn format(self) -> Option<Format> {
        if let TensorType::Format(format) = self { Some(format) } else { None }
    }

    /// The type with this id in `container`.
    pub fn from_id(id: u32, container: Container) -> TensorType {
        let found = match container {
            Container::PowerInfer if id > LAST_SHARED_ID => {
                POWERINFER_INTEGERS.iter().find(|(known, _)| *known == id).map(|(_, ty)| *ty)
            }
            Container::Gguf | Container::PowerInfer => {
                let other = || OTHERS.iter().copied().find(|ty| ty.gguf_id() == Some(id));
                Format::from_gguf_id(id).map(TensorType::Format).or_else(other)
            }
        };
        found.unwrap_or(TensorType::Unknown(id))
    }

    /// The id of this type in `container`; `None` if its table lacks the type.
    pub fn id(self, container: Container) -> Option<u32> {
        self.block()?;
        let id = self.gguf_id()?;
        match container {
            Container::Gguf => Some(id),
            Container::PowerInfer if id <= LAST_SHARED_ID => Some(id),
            Container::PowerInfer => {
                POWERINFER_INTEGERS.iter().find(|(_, ty)| *ty == self).map(|(id, _)| *id)
            }
        }
    }

    /// Text to append to a message about an unknown id; empty unless ggml has removed the id.
    #[must_use]
    pub fn removal_note(id: u32) -> &'static str {
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
        if let TensorType::Unknown(id) = self {
            return f.pad(&format!("?{id}"));
        }
        f.pad(self.name())
    }
}
