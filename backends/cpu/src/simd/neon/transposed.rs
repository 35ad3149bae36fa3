//! Sums over neuron-major rows.

super::super::transposed::transposed_kernels!("neon");
