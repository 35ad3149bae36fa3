//! Weights on disk, of which a part within a budget is in memory: the third tier, below devices and
//! RAM.
//!
//! A file's weights get a *region*: reserved addresses, as long as the file, without memory. A
//! *unit* (an expert's rows, or a layer's matrices) is read from the file to its place in the
//! region before it is used, and its memory moves to other units when it is evicted. So kernels
//! read weights at fixed addresses, or where a table says, and a result cannot depend on which
//! other units are resident. Reads bypass the page cache, so that the budget covers all memory that
//! the weights take.
//!
//! `region` owns the addresses, `spare` the memory of evicted units, `places` that of evicted rows,
//! `source` reads files, `reader` has the threads that read, `ring` the small reads on Linux, `unit`
//! says what is read at once, `join` joins the reads of rows, `cache` decides what stays (counts
//! alone, no clock), and `store` joins them. The idea of neuron bundles on flash with look-ahead is
//! that of PowerInfer-2 (Xue et al., 2024) and LLM in a flash (Alizadeh et al., 2023).

mod cache;
mod disk;
mod error;
mod join;
mod places;
mod probe;
mod reader;
mod region;
#[cfg(target_os = "linux")]
mod ring;
mod source;
mod spare;
mod stats;
mod store;
mod unit;

pub use cache::{Cache, CachePolicy};
pub use disk::disk_name;
pub use error::{Error, Result};
pub use probe::{DiskSpeed, SMALL_DEPTH, measure};
pub use source::{DirectFile, ReadAt};
pub use stats::StoreStats;
pub use store::{Store, UnitId};
pub use unit::{Piece, RowMatrix};
