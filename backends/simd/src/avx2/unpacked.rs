//! Dot products of formats that are unpacked first.

use std::arch::x86_64::_mm256_setzero_ps;

super::super::unpacked::unpacked_kernels!("avx2,fma,f16c", _mm256_setzero_ps());
