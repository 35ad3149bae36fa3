//! Weighted sums of rows.

super::super::sum_rows::sum_rows_kernels!("neon");
