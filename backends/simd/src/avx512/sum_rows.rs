//! Weighted sums of rows.

super::super::sum_rows::sum_rows_kernels!("avx512bw,avx512vl,avx512vnni");
