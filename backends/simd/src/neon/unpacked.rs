//! Dot products of formats that are unpacked first.

use std::arch::aarch64::vdupq_n_f32;

super::super::unpacked::unpacked_kernels!("neon", vdupq_n_f32(0.0));
