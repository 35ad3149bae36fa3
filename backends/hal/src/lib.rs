//! The contract between the engine and its compute devices.
//!
//! Backends implement the traits of `backend`, which have few methods and no checks. The engine
//! uses [`Device`], [`Queue`], [`Program`] and [`Run`], which check shapes, formats, ownership and
//! the memory budget once. Read [`op`] first: it lists every op that the engine uses. [`null`] is
//! the template for a new backend.
//!
//! The contract deliberately has no strides or byte offsets (a view is a range of rows), no graph,
//! no lazy evaluation, no I/O, no global variables, and no dependency on a GPU library.

mod backend;
mod batch;
mod device;
mod error;
pub mod format;
mod ledger;
pub mod null;
pub mod op;
pub mod pack;
mod program;
mod queue;
mod row_set;
mod row_table;
mod rows;
mod staging;
mod tensor;
mod time;
mod units;

pub use backend::{
    Backend, BackendQueue, DeviceInfo, DeviceKind, MailboxShape, MemoryReport, Plan, PostedData,
    RawMailbox, RawProgram, RawRun, RawTransfer, StoredPack,
};
pub use batch::{
    Batch, BatchFacts, BatchSeq, BatchShape, BatchToken, BatchView, KV_BLOCK, KvCache, KvRows,
    NO_SEQUENCE,
};
pub use device::{Device, DeviceId, Mailbox};
pub use error::{Error, Result};
pub use ledger::{Ledger, Reservation};
pub use op::{Op, OpDesc};
pub use program::{Program, Recorder};
pub use queue::{Queue, Run, Transfer};
pub use row_set::{HostRowSet, RowSet, Rows, Slot};
pub use row_table::{RowPlace, RowTable};
pub use rows::{HostRows, PackDesc, RowStore, Select, SharedBytes, Source};
pub use staging::{PlainStaging, RawStaging, Staging};
pub use tensor::{Layout, Operand, RawBuffer, Tensor, TensorDesc};
pub use time::{Clock, PartTime, Times};
pub use units::Bytes;
