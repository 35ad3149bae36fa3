//! Dot products of formats that are unpacked first.

use std::arch::x86_64::_mm512_setzero_ps;

super::super::unpacked::unpacked_kernels!("avx512bw,avx512vl,avx512vnni", _mm512_setzero_ps());
