//! Weighted sums of rows.

use super::super::grid;

super::super::sum_rows::sum_rows_kernels!("neon");
