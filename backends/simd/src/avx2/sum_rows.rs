//! Weighted sums of rows.

use super::grid;

super::super::sum_rows::sum_rows_kernels!("avx2,fma,f16c");
