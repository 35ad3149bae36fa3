//! Reads the pickle of a PyTorch checkpoint without executing it: a stack machine over an arena,
//! with the few opcodes and the few names that a dictionary of tensors needs.
//!
//! A pickle is a program that can import any function (`os.system`) and call it. The reader rejects
//! every name outside of [`GLOBALS`] and every opcode that it does not list, and a call can only
//! make a dictionary, a tensor or a parameter. Values are node indices, so neither nesting nor
//! sharing can exhaust stack or memory: every opcode adds at most one node, a pickle has no more
//! opcodes than bytes, and the values copied between nodes are short.
//!
//! Source: the opcode table in Python's `pickletools`; the tuple of a storage as `torch.save`
//! writes it.

mod machine;

use std::rc::Rc;

use machine::Machine;

use super::MAX_AXES;

/// Maximum number of nodes: a checkpoint has about twenty per tensor.
const MAX_NODES: usize = 2 << 20;
/// Bytes of the longest name of a tensor or storage.
const MAX_NAME: usize = 1024;

/// A problem with a pickle.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The pickle ends inside an opcode or before its end mark.
    #[error("it ends inside an opcode")]
    Truncated,
    /// An opcode that a dictionary of tensors does not need.
    #[error("the opcode {name} is not allowed in a checkpoint")]
    Opcode {
        /// Name of the opcode.
        name: String,
    },
    /// A name that a dictionary of tensors does not need.
    #[error(
        "the name `{name}` is not allowed in a checkpoint: only tensors are read, nothing is run"
    )]
    Global {
        /// Module and name.
        name: String,
    },
    /// An opcode that finds a wrong value on the stack.
    #[error("the opcode {name} found no {expected} on the stack")]
    Stack {
        /// The opcode.
        name: &'static str,
        /// The expected value.
        expected: &'static str,
    },
    /// An unsupported protocol.
    #[error("it has the protocol {found}, expected 2 to 5")]
    Protocol {
        /// The number in the file.
        found: u8,
    },
    /// Too many values.
    #[error("it has more than {MAX_NODES} values")]
    TooMany,
    /// A malformed tensor or storage.
    #[error("{what} is malformed: expected {expected}")]
    Arguments {
        /// The object.
        what: &'static str,
        /// The expected fields of the object.
        expected: &'static str,
    },
    /// A tensor with too many axes.
    #[error("a tensor has {found} axes, expected at most {MAX_AXES}")]
    Axes {
        /// Number of axes of the tensor.
        found: usize,
    },
    /// A name that is too long.
    #[error("the name `{start}...` has {found} bytes, expected at most {MAX_NAME}")]
    Name {
        /// The first 40 characters of the name.
        start: String,
        /// Length of the name in bytes.
        found: usize,
    },
    /// A tensor that occurs twice.
    #[error("tensor `{tensor}` occurs twice")]
    Duplicate {
        /// The tensor.
        tensor: String,
    },
    /// Text that is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
    /// A result that is neither a dictionary nor a tensor.
    #[error("it contains neither a dictionary of tensors nor a tensor")]
    NoDictionary,
}

/// The object that an allowed name in a pickle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Global {
    Dict,
    Tensor,
    Parameter,
    /// A class of storages, which determines the number type.
    Storage(&'static str),
}

const GLOBALS: &[(&str, Global)] = &[
    ("collections.OrderedDict", Global::Dict),
    ("torch._utils._rebuild_tensor", Global::Tensor),
    ("torch._utils._rebuild_tensor_v2", Global::Tensor),
    ("torch._utils._rebuild_parameter", Global::Parameter),
    ("torch.FloatStorage", Global::Storage("FloatStorage")),
    ("torch.HalfStorage", Global::Storage("HalfStorage")),
    ("torch.BFloat16Storage", Global::Storage("BFloat16Storage")),
    ("torch.DoubleStorage", Global::Storage("DoubleStorage")),
    ("torch.ByteStorage", Global::Storage("ByteStorage")),
    ("torch.CharStorage", Global::Storage("CharStorage")),
    ("torch.ShortStorage", Global::Storage("ShortStorage")),
    ("torch.IntStorage", Global::Storage("IntStorage")),
    ("torch.LongStorage", Global::Storage("LongStorage")),
    ("torch.BoolStorage", Global::Storage("BoolStorage")),
];

/// Names of the opcodes that are rejected, for error messages.
const REFUSED: &[(u8, &str)] = &[
    (b'2', "DUP"),
    (b'F', "FLOAT"),
    (b'I', "INT"),
    (b'L', "LONG"),
    (b'P', "PERSID"),
    (b'S', "STRING"),
    (b'V', "UNICODE"),
    (b'd', "DICT"),
    (b'g', "GET"),
    (b'i', "INST"),
    (b'l', "LIST"),
    (b'o', "OBJ"),
    (b'p', "PUT"),
    (b'\x81', "NEWOBJ"),
    (b'\x82', "EXT1"),
    (b'\x83', "EXT2"),
    (b'\x84', "EXT4"),
    (b'\x8b', "LONG4"),
    (b'\x8f', "EMPTY_SET"),
    (b'\x90', "ADDITEMS"),
    (b'\x91', "FROZENSET"),
    (b'\x92', "NEWOBJ_EX"),
    (b'\x96', "BYTEARRAY8"),
    (b'\x97', "NEXT_BUFFER"),
    (b'\x98', "READONLY_BUFFER"),
];

/// A tensor described by the pickle: a view of a storage, in units of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) name: String,
    /// PyTorch's class of the storage.
    pub(crate) class: &'static str,
    /// The archive member with its data.
    pub(crate) key: Rc<str>,
    pub(crate) n_stored: u64,
    pub(crate) offset: u64,
    pub(crate) shape: Vec<u64>,
    pub(crate) strides: Vec<u64>,
}

/// The tensors of the dictionary in `bytes`, or of its `state_dict`; or the single tensor in
/// `bytes`, without a name.
///
/// # Errors
/// The [`Problem`] and the offset of its opcode.
pub(crate) fn read(bytes: &[u8]) -> Result<Vec<View>, (usize, Problem)> {
    let mut machine = Machine::new(bytes);
    loop {
        let start = machine.at;
        match machine.step() {
            Ok(None) => {}
            Ok(Some(top)) => return machine.tensors(top).map_err(|problem| (start, problem)),
            Err(problem) => return Err((start, problem)),
        }
    }
}
