//! Weighted sums of rows.

use super::grid;

super::super::sum_rows::sum_rows_kernels!("bmi2,avx512bw,avx512vl,avx512vnni");
