//! ERNIE 4.5, dense and with experts.

use super::llama::LLAMA;
use super::sections::consecutive;
use crate::ArchSpec;

pub(super) const ERNIE4_5: ArchSpec =
    ArchSpec { name: "ernie4_5", models: "ERNIE 4.5 0.3B", windows: false, ..LLAMA };

pub(super) const PADDLEOCR: ArchSpec =
    ArchSpec { name: "paddleocr", models: "PaddleOCR-VL (text)", mixer: consecutive, ..ERNIE4_5 };

/// The first layers are dense, and the file says how many of the others have experts.
pub(super) const ERNIE4_5_MOE: ArchSpec =
    ArchSpec { name: "ernie4_5-moe", models: "ERNIE 4.5 21B-A3B and 300B-A47B", ..ERNIE4_5 };
