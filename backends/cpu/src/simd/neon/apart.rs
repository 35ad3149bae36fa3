//! Dot products of formats that are unpacked first.

use std::arch::aarch64::vdupq_n_f32;

super::super::apart::apart_kernels!("neon", vdupq_n_f32(0.0));
